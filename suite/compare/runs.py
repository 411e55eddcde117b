"""A run to compare: the records below a path, sorted into groups of cells that share everything but the system."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from suite.records.groups import Group, group_records
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.records.store import Problem, RecordStore
from suite.tables.rows import Row, merged_rows


class NoComparison(ValueError):
    """Two runs cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One system under one setting, as one run has it.

    Attributes:
        group: The systems that it took turns with.
        records: One per round, the newest where a round was run again.
        row: The rounds merged.
    """

    group: Group
    records: tuple[Record, ...]
    row: Row

    @property
    def cell(self) -> Cell:
        """The configuration; of its rounds the first."""
        return self.records[0].cell

    @property
    def ok(self) -> bool:
        """Whether every round ended well."""
        return self.row.status is Status.OK

    @property
    def verified(self) -> bool:
        """Whether every verification passed, and there was one."""
        return self.row.verified not in (None, "no")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a path holds.

    Attributes:
        name: What messages call it: `RUN_A` or `RUN_B`.
        path: As the user gave it.
        files: Every readable record, by its file.
        problems: Files that were skipped, and why.
    """

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The newest record of every cell and round, in groups."""
        return tuple(group_records(self.files.values()))

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Every system of every group, in the order of the published tables."""
        return tuple(
            Side(group=group, records=group.rounds_by_system[row.system], row=row)
            for group in self.groups
            for row in merged_rows(group)
            if not row.again
        )


def read_run(name: str, path: Path) -> Run:
    """Read a results directory, a directory of records, or one record.

    Args:
        name: What messages call the run.
        path: Where it lies.

    Returns:
        The run. Files that are no records of this version stand under `problems`; the others count.

    Raises:
        NoComparison: there is no such path, or no record that can be read.
    """
    try:
        found = path.exists()
    except OSError as error:
        raise NoComparison(f"{name}: {path} cannot be read: {error.strerror}; change its permissions") from error
    if not found:
        raise NoComparison(f"{name}: there is no {path}; give a results directory, as in results, or a record file")
    if path.is_file() and path.suffix != ".json":
        raise NoComparison(f"{name}: {path} is no record, whose name ends in .json; give one, or a results directory")
    records, problems = _stored(path)
    for file, record in list(records.items()):
        impossible = [seconds for seconds in _seconds(record) if not 0 < seconds < math.inf]
        if impossible:
            del records[file]
            problems.append(Problem(file, f"turns has {impossible[0]} s, no duration; measure it again"))
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise NoComparison(
            f"{name}: {path} holds no record that can be compared{skipped}; give the directory that `run_bench.py "
            "--out` named"
        )
    return Run(name=name, path=path, files=records, problems=tuple(problems))


def _seconds(record: Record) -> Iterator[float]:
    """Of all turns, the baseline's included."""
    if record.turns is not None:
        for times in (record.turns.system_s, record.turns.baseline_s or ()):
            yield from chain(*times)


def _stored(path: Path) -> tuple[dict[Path, Record], list[Problem]]:
    """Readable records by file, and what was skipped."""
    store = RecordStore(path)
    if path.is_dir():
        if not store.directory.is_dir():
            store.directory = path
        return store.load_files()
    # One file: its neighbours are no part of the run, whatever is wrong with them.
    store.directory = path.parent
    records, problems = store.load_files()
    return {path: records[path]} if path in records else {}, [
        one for one in problems if one.path in (path, path.parent)
    ]
