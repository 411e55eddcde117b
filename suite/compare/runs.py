"""Two runs to compare: the records below a path as a frame with a line per cell, and what cells are called."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from suite.records.command_line import BadOption
from suite.records.groups import group_records
from suite.records.record import Cell, Record
from suite.records.store import Problem, RecordStore
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache

_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", "cache_ratio", "device_budget_bytes")


class NoComparison(BadOption):
    """Two runs cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Readable records below a path by file, and files that were skipped; `name` is `RUN_A` or `RUN_B`."""

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every system of every group, in the order of the published tables; of each round the newest record."""
        return tuple(row for group in group_records(self.files.values()) for row in merged_rows(group))


def place(row: Row) -> tuple[str, int]:
    """The digest of the machine that measured a row, and the threads that torch had there."""
    environment = row.records[0].environment
    return environment.machine, environment.threads


def read_run(name: str, path: Path) -> RunRecords:
    """Read a results directory, a directory of records, or one record; `name` is what messages call the run.

    Raises:
        NoComparison: there is no such path, or no record that can be read.
    """
    if not path.is_dir() and not (path.is_file() and path.suffix == ".json"):
        what = "is neither a directory nor a record, whose name ends in .json" if path.exists() else "does not exist"
        raise NoComparison(f"{name}: {path} {what}; give a results directory, as in results, or a record file")
    store = RecordStore(path)
    if not store.directory.is_dir():
        store.directory = path if path.is_dir() else path.parent
    records, problems = store.load_files()
    if path.is_file():  # its neighbours are no part of the run, whatever is wrong with them
        records = {file: record for file, record in records.items() if file == path}
        problems = [problem for problem in problems if problem.path in (path, path.parent)]
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise NoComparison(
            f"{name}: {path} holds no record that can be compared{skipped}; give the directory that `run_bench.py "
            "--out` named"
        )
    return RunRecords(name=name, path=path, files=records, problems=tuple(problems))


def join(before: RunRecords, after: RunRecords) -> pd.DataFrame:
    """The outer join of two runs over whole configurations.

    Returns:
        A line per cell in the order of the published tables, RUN_A's first: `label`, what identifies it, `in_run`
        (`both`, `left_only`, `right_only`), and of each run, ending in `_a` and `_b`, figures and the `Row` as `row`.

    Raises:
        NoComparison: both paths lead to the same files, the runs have no cell in common, or one has a cell twice.
    """
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise NoComparison(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    facts = pd.DataFrame([_facts(row) for row in (*before.rows, *after.rows)], dtype=object)
    frame = pd.DataFrame([_line(row) for row in (*before.rows, *after.rows)]).assign(label=_labels(facts))
    frame["order"] = range(len(frame))
    keys, sides = ["workload", "setting", "system"], (frame[: len(before.rows)], frame[len(before.rows) :])
    for run, side in zip((before, after), sides, strict=True):
        if side.duplicated(keys).any():
            raise NoComparison(
                f"{run.name}: {run.path} has cells of several machines, or with other threads; give each machine's "
                "records as a directory of its own"
            )
    joined = sides[0].merge(sides[1], how="outer", on=keys, suffixes=("_a", "_b"), indicator="in_run")
    if not (joined["in_run"] == "both").any():
        raise NoComparison(_nothing_in_common(*(facts.loc[side.index] for side in sides)))
    joined.insert(0, "label", joined["label_a"].fillna(joined["label_b"]))
    joined = joined.sort_values(["order_a", "order_b"], ignore_index=True)
    return joined.drop(columns=["label_a", "label_b", "order_a", "order_b"])


def _line(row: Row) -> dict[str, object]:
    return {
        "workload": row.cell.workload,
        "setting": row.cell.setting,
        "system": row.system,
        "machine": place(row)[0],
        "status": row.status.value,
        "verified": row.verified,
        "samples_per_s": row.samples_per_s,
        "vs_baseline": row.ratio and row.ratio.value,
        "builds": row.builds,
        "row": row,
    }


def _facts(row: Row) -> dict[str, str]:
    """Everything that may tell a cell from another of its workload, in words."""
    facts = {"cell": f"{row.system} x {row.cell.workload}", "cache": cache(row.cell)}
    for name in Cell.model_fields:
        if name not in _NOT_IN_LABELS:
            value, called = getattr(row.cell, name), name.replace("_", " ")
            facts[name] = f"no {called}" if value is None else f"{called} {value}"
    return facts


def _labels(facts: pd.DataFrame) -> list[str]:
    """Short names of cells: system, workload, and what tells a cell from others of its workload in two runs."""
    labels = dict.fromkeys(facts.index, "")
    workload = facts["cell"].str.rpartition(" x ")[2]
    for _, alike in facts.groupby(workload):
        several = ["cell", *(name for name in alike.columns.drop("cell") if alike[name].nunique() > 1)]
        labels |= {index: ", ".join(row) for index, row in zip(alike.index, alike[several].to_numpy(), strict=True)}
    return list(labels.values())


def _nothing_in_common(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """The sentence that says in what two runs differ altogether."""
    apart = [
        f"{', '.join(sorted(set(before[name])))} against {', '.join(sorted(set(after[name])))}"
        for name in before.columns
        if not set(before[name]) & set(after[name])
    ]
    differ = f": they differ in {'; '.join(apart)}" if apart else ""
    return f"RUN_A and RUN_B have no cell in common{differ}; run the same systems, workloads and options in both"
