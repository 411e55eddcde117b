"""Two runs to compare: the records below a path, and which cells of two runs are the same."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from suite.records.groups import group_records
from suite.records.options import BadOption
from suite.records.record import Cell, Record
from suite.records.store import Problem, RecordStore
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache

_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", "cache_ratio", "device_budget_bytes")
_SPEAK_FOR_THEMSELVES = ("cache", "data", "device", "machine", "optimizer")


class NoComparison(BadOption):
    """Two runs cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a path holds: readable records by file, and files that were skipped; `name` is `RUN_A` or `RUN_B`."""

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every system of every group, in the order of the published tables; of each round the newest record."""
        return tuple(row for group in group_records(self.files.values()) for row in merged_rows(group) if not row.again)

    @property
    def several_places(self) -> bool:
        """Whether it was measured on several machines; with other threads a machine is not the same."""
        return len({_place(row) for row in self.rows}) > 1


class Pair(NamedTuple):
    """A cell as both runs have it."""

    before: Row
    after: Row

    @property
    def another_machine(self) -> bool:
        """Whether its speeds are of two machines; with other threads a machine is not the same."""
        return _place(self.before) != _place(self.after)


def machine(row: Row) -> str:
    """The digest of the machine that measured a row."""
    return row.records[0].environment.machine


def _place(row: Row) -> tuple[str, int]:
    return machine(row), row.records[0].environment.threads


def read_run(name: str, path: Path) -> Run:
    """Read a results directory, a directory of records, or one record; `name` is what messages call the run.

    Raises:
        NoComparison: there is no such path, or no record that can be read.
    """
    try:
        found = path.exists()
    except OSError as error:
        raise NoComparison(f"{name}: {path} cannot be read: {error.strerror}; change its permissions") from error
    if not found:
        raise NoComparison(f"{name}: there is no {path}; give a results directory, as in results, or a record file")
    if not path.is_dir() and not path.is_file():
        raise NoComparison(f"{name}: {path} is a pipe or the like; give a results directory, or a record file")
    if path.is_file() and path.suffix != ".json":
        raise NoComparison(f"{name}: {path} is no record, whose name ends in .json; give one, or a results directory")
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
    return Run(name=name, path=path, files=records, problems=tuple(problems))


def match(before: Run, after: Run) -> tuple[list[Pair], list[Row], list[Row]]:
    """Find the cells that two runs share, machine by machine; two runs of one machine each are compared in any case.

    Returns:
        The pairs in the order of the published tables, and the cells that only RUN_A and only RUN_B has.

    Raises:
        NoComparison: both paths lead to the same files, or the runs have no cell in common.
    """
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise NoComparison(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    by_place = before.several_places or after.several_places

    def key(row: Row) -> tuple[object, ...]:
        return by_place and _place(row), row.cell.setting, row.system

    sought = {key(row): row for row in after.rows}
    found = [(row, sought.pop(key(row), None)) for row in before.rows]
    pairs = [Pair(row, other) for row, other in found if other is not None]
    if not pairs:
        raise NoComparison(_nothing_in_common(before, after))
    return pairs, [row for row, other in found if other is None], list(sought.values())


def labels(before: Run, after: Run) -> Callable[[Row], str]:
    """What gives cells short names: system, workload, and what tells a cell from others of its workload in two runs."""
    # Where each run has one machine only, there is nothing to tell apart, even if they are two.
    alike = () if before.several_places or after.several_places else ("machine", "threads")
    values: dict[tuple[str, str], set[object]] = {}
    for row in (*before.rows, *after.rows):
        for name, value in _facts(row).items():
            values.setdefault((row.cell.workload, name), set()).add(value)

    def label(row: Row) -> str:
        workload = row.cell.workload
        facts = [
            _spoken(name, fact)
            for name, fact in _facts(row).items()
            if len(values[workload, name]) > 1 and name not in alike
        ]
        return ", ".join([f"{row.system} x {workload}", *facts])

    return label


def _facts(row: Row) -> dict[str, object]:
    facts = {name: getattr(row.cell, name) for name in Cell.model_fields if name not in _NOT_IN_LABELS}
    place = dict(zip(("machine", "threads"), _place(row), strict=True))
    return facts | {"cache": cache(row.cell)} | place


def _spoken(name: str, value: object) -> str:
    if value is None:
        return f"no {name.replace('_', ' ')}"
    if name in _SPEAK_FOR_THEMSELVES:
        return str(value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def _nothing_in_common(before: Run, after: Run) -> str:
    """The sentence that says in what two runs differ altogether."""
    facts = [
        [{"cell": f"{row.system} x {row.cell.workload}"} | _facts(row) for row in run.rows] for run in (before, after)
    ]
    apart = []
    for name in facts[0][0]:
        ours, theirs = ({row[name] for row in rows} for rows in facts)
        if not ours & theirs:
            apart.append(f"{name.replace('_', ' ')} {_listed(ours)} against {_listed(theirs)}")
    differ = f": they differ in {'; '.join(apart)}" if apart else ""
    return (
        f"RUN_A and RUN_B have no cell in common{differ}; run the same systems, workloads and options in both, and "
        "give each machine's records as a directory of its own"
    )


def _listed(values: Collection[object]) -> str:
    return ", ".join(sorted(map(str, values)))
