"""Two runs to compare: the records below a path as rows by cell, and what cells are called."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from suite.records.command_line import BadOption
from suite.records.groups import group_records
from suite.records.record import Cell, Record
from suite.records.store import Problem, RecordStore
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache

_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", "rendezvous", "cache_ratio", "device_budget_bytes")
CellKey = tuple[str, str, str]
"""Workload, setting and system: the whole configuration of a cell, less its round."""


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Readable records below a path by file, and files that were skipped; `name` is `RUN_A` or `RUN_B`."""

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def rows(self) -> dict[CellKey, Row]:
        """Every system of every group, in the order of the published tables; of each round the newest record.

        Raises:
            BadOption: a cell was measured on several machines, or with other threads.
        """
        found: dict[CellKey, Row] = {}
        for group in group_records(self.files.values()):
            for row in merged_rows(group):
                if found.setdefault((row.cell.workload, row.cell.setting, row.system), row) is not row:
                    raise BadOption(
                        f"{self.name}: {self.path} has cells of several machines, or with other threads; give each "
                        "machine's records as a directory of its own"
                    )
        return found


def read_run(name: str, path: Path) -> RunRecords:
    """Read a results directory; `name` is what messages call the run.

    Raises:
        BadOption: it has no records, or none that can be read.
    """
    store = RecordStore(path)
    if not store.directory.is_dir():
        raise BadOption(f"{name}: {path} has no records/: give a results directory, as `run_bench.py --out` named it")
    records, problems = store.load_files()
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise BadOption(f"{name}: {path} holds no record that can be compared{skipped}; give another, or measure it")
    return RunRecords(name=name, path=path, files=records, problems=tuple(problems))


def check_comparable(before: RunRecords, after: RunRecords) -> None:
    """Raise `BadOption` where both paths lead to the same files, or the runs have no cell in common."""
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise BadOption(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    if before.rows.keys() & after.rows.keys():
        return
    values = [_values(_facts(row) for row in run.rows.values()) for run in (before, after)]
    apart = [
        f"{', '.join(sorted(values[0][name]))} against {', '.join(sorted(values[1][name]))}"
        for name in values[0]
        if not values[0][name] & values[1][name]
    ]
    differ = f": they differ in {'; '.join(apart)}" if apart else ""
    raise BadOption(
        f"RUN_A and RUN_B have no cell in common{differ}; run the same systems, workloads and options in both"
    )


def labels_of(rows: Mapping[CellKey, Row]) -> dict[CellKey, str]:
    """Short names of cells: system, workload, and what tells a cell from the others of its workload."""
    by_workload: defaultdict[str, dict[CellKey, dict[str, str]]] = defaultdict(dict)
    for key, row in rows.items():
        by_workload[row.cell.workload][key] = _facts(row)
    labels: dict[CellKey, str] = {}
    for alike in by_workload.values():
        several = [name for name, values in _values(alike.values()).items() if name == "cell" or len(values) > 1]
        labels |= {key: ", ".join(facts[name] for name in several) for key, facts in alike.items()}
    return labels


def _facts(row: Row) -> dict[str, str]:
    """Everything that may tell a cell from another of its workload, in words."""
    facts = {"cell": f"{row.system} x {row.cell.workload}", "cache": cache(row.cell)}
    for name in Cell.model_fields:
        if name not in _NOT_IN_LABELS:
            value, called = getattr(row.cell, name), name.replace("_", " ")
            facts[name] = f"no {called}" if value is None else f"{called} {value}"
    return facts


def _values(cells: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """The values that the facts of several cells have, by name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for facts in cells:
        for name, text in facts.items():
            found[name].add(text)
    return found
