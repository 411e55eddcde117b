"""Who stands in a panel: the systems of one stream, model and machine, at every cache size that they ran with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.record import Record
from suite.report import contests
from suite.tables.quantities import MISSING
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache_size
from systems.registry import CONTROLS


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system at one cache size.

    Attributes:
        label: Its name, with the budget where the family has several, and how many rounds ended well if not all.
        row: Its rounds merged.
        records: The rounds that its numbers come from; none where there are no numbers.
    """

    label: str
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """Groups that differ in cache size alone: one stream, one model, one machine.

    Attributes:
        group: Any of them, for its dataset, device and setting.
        entries: Reference first, then the baseline, by name and by budget; controls last.
    """

    group: Group
    entries: tuple[Entry, ...]


def families(groups: Iterable[Group]) -> tuple[Family, ...]:
    """The families of a report, in order of its groups."""
    return tuple(Family(group=members[0], entries=_entries(members)) for members in contests.families(groups))


def side_by_side(found: Sequence[Family], columns: int) -> Iterator[tuple[Family, ...]]:
    """Lines of so many panels at most: neighbours whose labels are the same share a line, and its labels."""
    for _, run in itertools.groupby(found, key=lambda family: tuple(entry.label for entry in family.entries)):
        members = tuple(run)
        yield from (members[start : start + columns] for start in range(0, len(members), columns))


def device(group: Group) -> str:
    """Where a group was measured."""
    where = f"{group.key.device}, {group.key.threads} threads"
    return f"on a CPU: {where}" if group.on_cpu else f"on {group.key.device}"


def setting(group: Group) -> str:
    """What was trained."""
    cell = group.cell
    capped = "" if cell.max_rows is None else f", {cell.max_rows:,} rows"
    return (
        f"{cell.data} data, scale {cell.scale}{capped}, {cell.optimizer}, batch {cell.batch_size:,}, "
        f"dim {cell.embedding_dim}"
    )


@dataclass(frozen=True)
class Titles:
    """Titles of a figure and of its panels: what all panels share stands once, above.

    Attributes:
        shared: Device and setting, where they are the same in all panels.
        own: What tells a panel from the others, beside its dataset.
    """

    shared: tuple[str, ...]
    own: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Titles:
        """Of the panels' groups."""
        facts = [(device(group), setting(group)) for group in groups]
        alike = [len(set(column)) == 1 for column in zip(*facts, strict=True)]
        return cls(
            tuple(itertools.compress(facts[0], alike)),
            tuple(tuple(itertools.compress(fact, [not same for same in alike])) for fact in facts),
        )


def _entries(groups: Sequence[Group]) -> tuple[Entry, ...]:
    several = len(groups) > 1
    made = []
    for group in groups:
        words = cache_size(group.cell)
        for row in merged_rows(group):
            runs = group.rounds_by_system[row.system]
            records = tuple(run for run in runs if run.measurement is not None) if row.measured_rounds else ()
            label = f"{row.system}, {words}" if several and words != MISSING else row.system
            if 0 < row.measured_rounds < row.rounds:
                label += f", {row.measured_rounds} of {row.rounds} rounds"
            made.append((_order(group, row.system), Entry(label=label, row=row, records=records)))
    return tuple(entry for _, entry in sorted(made, key=lambda pair: pair[0]))


def _order(group: Group, system: str) -> tuple[object, ...]:
    base, cell = base_name(system), group.cell
    return (
        base in CONTROLS,
        base != REFERENCE,
        not is_baseline(system),
        system,
        cell.device_budget_bytes or 0,
        cell.cache_ratio or 0.0,
    )
