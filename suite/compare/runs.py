"""Two runs to compare: the records below a path as a frame with a line per cell, and what cells are called."""

from collections.abc import Sequence
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
_SPEAK_FOR_THEMSELVES = ("cache", "data", "device", "machine", "optimizer")


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

    @property
    def several_places(self) -> bool:
        """Whether it was measured on several machines; with other threads a machine is not the same."""
        return len({place(row) for row in self.rows}) > 1


def place(row: Row) -> tuple[str, int]:
    """The digest of the machine that measured a row, and the threads that torch had there."""
    environment = row.records[0].environment
    return environment.machine, environment.threads


def read_run(name: str, path: Path) -> RunRecords:
    """Read a results directory, a directory of records, or one record; `name` is what messages call the run.

    Raises:
        NoComparison: there is no such path, or no record that can be read.
    """
    for wrong, what in (
        (not path.exists(), f"there is no {path}"),
        (path.exists() and not path.is_dir() and not path.is_file(), f"{path} is a pipe or the like"),
        (path.is_file() and path.suffix != ".json", f"{path} is no record, whose name ends in .json"),
    ):
        if wrong:
            raise NoComparison(f"{name}: {what}; give a results directory, as in results, or a record file")
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
    """The outer join of two runs over whole configurations, machine by machine where a run has several.

    Returns:
        A line per cell in the order of the published tables, RUN_A's first: `label`, what identifies it, `in_run`
        (`both`, `left_only`, `right_only`), and of each run, ending in `_a` and `_b`, figures and the `Row` as `row`.

    Raises:
        NoComparison: both paths lead to the same files, or the runs have no cell in common.
    """
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise NoComparison(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    by_place = before.several_places or after.several_places
    facts = pd.DataFrame([_facts(row) for row in (*before.rows, *after.rows)], dtype=object)
    labels = _labels(facts, ignored=() if by_place else ("machine", "threads"))
    frames = [
        pd.DataFrame([_line(row, by_place=by_place) for row in run.rows]).assign(label=own, order=range(len(own)))
        for run, own in ((before, labels[: len(before.rows)]), (after, labels[len(before.rows) :]))
    ]
    joined = frames[0].merge(
        frames[1], how="outer", on=["place", "workload", "setting", "system"], suffixes=("_a", "_b"), indicator="in_run"
    )
    if not (joined["in_run"] == "both").any():
        raise NoComparison(_nothing_in_common(facts[: len(before.rows)], facts[len(before.rows) :]))
    joined.insert(0, "label", joined["label_a"].fillna(joined["label_b"]))
    joined = joined.sort_values(["order_a", "order_b"], ignore_index=True)
    return joined.drop(columns=["place", "label_a", "label_b", "order_a", "order_b"])


def _line(row: Row, *, by_place: bool) -> dict[str, object]:
    return {
        "place": str(place(row)) if by_place else "",
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


def _facts(row: Row) -> dict[str, object]:
    """Everything that may tell a cell from another of its workload."""
    workload, (machine, threads) = row.cell.workload, place(row)
    setting = {name: getattr(row.cell, name) for name in Cell.model_fields if name not in _NOT_IN_LABELS}
    where = {"machine": machine, "threads": threads, "cache": cache(row.cell)}
    return {"cell": f"{row.system} x {workload}", "workload": workload, **setting, **where}


def _labels(facts: pd.DataFrame, *, ignored: Sequence[str]) -> list[str]:
    """Short names of cells: system, workload, and what tells a cell from others of its workload in two runs."""
    labels = dict.fromkeys(facts.index, "")
    for _, alike in facts.groupby("workload"):
        several = [
            name
            for name in alike.columns.drop(["cell", "workload", *ignored])
            if len({str(value) for value in alike[name]}) > 1
        ]
        for index, row in alike.to_dict("index").items():
            labels[index] = ", ".join([row["cell"], *(_spoken(name, row[name]) for name in several)])
    return list(labels.values())


def _spoken(name: str, value: object) -> str:
    if value is None:
        return f"no {name.replace('_', ' ')}"
    if name in _SPEAK_FOR_THEMSELVES:
        return str(value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def _nothing_in_common(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """The sentence that says in what two runs differ altogether."""
    apart = []
    for name in before.columns.drop("workload"):
        ours, theirs = ({str(value) for value in side[name]} for side in (before, after))
        if not ours & theirs:
            apart.append(f"{name.replace('_', ' ')} {', '.join(sorted(ours))} against {', '.join(sorted(theirs))}")
    differ = f": they differ in {'; '.join(apart)}" if apart else ""
    return (
        f"RUN_A and RUN_B have no cell in common{differ}; run the same systems, workloads and options in both, and "
        "give each machine's records as a directory of its own"
    )
