"""What a sweep of cache sizes or budgets makes: groups of one stream, model and machine that differ in size alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.record import Record
from suite.tables.quantities import MISSING
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache_size
from suite.tables.sweeps import on_drive, sweeps
from systems.registry import CONTROLS


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system at one cache size.

    Attributes:
        label: Its name, with the size where the family has several, and how many rounds ended well if not all.
        row: Its rounds merged.
        records: The rounds that its numbers come from; none where there are no numbers.
    """

    label: str
    group: Group
    row: Row
    records: tuple[Record, ...]

    @property
    def is_control(self) -> bool:
        """A yardstick, no system."""
        return base_name(self.row.system) in CONTROLS

    @property
    def is_reference(self) -> bool:
        """The right answer."""
        return base_name(self.row.system) == REFERENCE


@dataclass(frozen=True)
class Family:
    """Groups that differ in size alone, the smallest first."""

    groups: tuple[Group, ...]

    @property
    def group(self) -> Group:
        """Any of them, for its dataset, device and setting."""
        return self.groups[0]

    @property
    def on_drive(self) -> bool:
        """Whether its rows are on a drive, so that it has tables and a figure of its own."""
        return on_drive(self.group)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every system once, with the smallest cache that it ran with; the reference first, controls last."""
        smallest: dict[str, Entry] = {}
        for group in self.groups:
            for entry in _entries(group, several=len(self.groups) > 1):
                known = smallest.setdefault(entry.row.system, entry)
                if not known.records and entry.records:
                    smallest[entry.row.system] = entry
        return tuple(sorted(smallest.values(), key=_order))


def families(groups: Iterable[Group]) -> tuple[Family, ...]:
    """Groups that differ in size alone together, in order of the first of each."""
    return tuple(map(Family, sweeps(groups)))


def device_bytes(row: Row) -> int | None:
    """Bytes of the device by the system's own account, as `--device-budget` counts them; None: none are on it."""
    parts = (row.device_rows_bytes, row.device_state_bytes, row.device_index_bytes, row.device_staging_bytes)
    known = [part for part in parts if part is not None]
    return sum(known) or None


def _entries(group: Group, *, several: bool) -> Iterator[Entry]:
    words = cache_size(group.cell)
    for row in merged_rows(group):
        if row.again:
            continue
        runs = group.rounds_by_system[row.system]
        label = f"{row.system}, {words}" if several and words != MISSING else row.system
        if 0 < row.measured_rounds < row.rounds:
            label += f", {row.measured_rounds} of {row.rounds} rounds"
        records = tuple(run for run in runs if run.measurement is not None) if row.measured_rounds else ()
        yield Entry(label=label, group=group, row=row, records=records)


def _order(entry: Entry) -> tuple[object, ...]:
    return entry.is_control, not entry.is_reference, not is_baseline(entry.row.system), entry.row.system
