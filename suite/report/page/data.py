"""What the page shows of records: rows of the main table, the records behind a number, standings by budget."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.record import Cell, Environment, Record
from suite.records.status import Status
from suite.report.page.columns import PageColumn
from suite.report.sheets.leaderboard import Contender, Contest, Place, contests, standings
from suite.report.source import Source
from suite.tables.quantities import MISSING, amount, gigabytes
from suite.tables.rows import Row, merged_rows, one_line
from suite.tables.sections import section
from suite.tables.statistics import SpeedRatio, Standing, rank

CLOSE = "too close to call"
SPEED = "samples/s"
"""The value behind a number whose column no record has."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell of the main table: its words, and what it is sorted by (None: no value, sorted last)."""

    text: str
    value: float | str | None


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """A row of the main table.

    Attributes:
        facets: What it can be filtered by.
        place: Within its comparison.
        entries: In order of the page's columns.
        records: Positions of the records behind it, in the list that the page carries.
        remark: What to know beside the numbers.
        published: By others: there is no record.
    """

    system: str
    facets: dict[str, str]
    place: Entry
    entries: tuple[Entry, ...]
    records: tuple[int, ...] = ()
    remark: str = ""
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class BudgetLine:
    """A line of the standings within a budget; `cells` in order of `BUDGET_HEADS`."""

    cells: tuple[str, ...]
    records: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BudgetTable:
    """A contest at every budget at which anything changes.

    Attributes:
        heading: Dataset, setting and device.
        facts: What the bytes were read off, and what was moved over which link.
        standings: Least budget and the standings from there on, in increasing order of budget.
        smallest: System and the device bytes of its smallest cell.
    """

    heading: str
    facts: tuple[str, ...]
    standings: tuple[tuple[int, tuple[BudgetLine, ...]], ...]
    smallest: tuple[tuple[str, int], ...]


BUDGET_HEADS = ("place", "system", "cell", SPEED, "relative to the first", "device bytes")


class Names:
    """Words for settings and devices: short where that tells them apart, with a digest where it does not."""

    def __init__(self, groups: Sequence[Group]) -> None:
        settings = {(group.cell.workload, _setting(group.cell), group.cell.setting) for group in groups}
        machines = {(_device(group), group.key.machine, group.key.threads) for group in groups}
        self._settings = Counter((workload, words) for workload, words, _ in settings)
        self._machines = Counter(words for words, _, _ in machines)

    def setting(self, cell: Cell) -> str:
        """Data, scale and cache size; with the setting's digest where two settings of a dataset read alike."""
        words = _setting(cell)
        return words if self._settings[cell.workload, words] < 2 else f"{words}, setting {cell.setting}"

    def device(self, group: Group) -> str:
        """The device; with machine and threads where two machines read alike."""
        words, key = _device(group), group.key
        return words if self._machines[words] < 2 else f"{words}, machine {key.machine}, {key.threads} threads"


def page_rows(groups: Sequence[Group], columns: Sequence[PageColumn], positions: dict[str, int]) -> tuple[PageRow, ...]:
    """Rows of the main table: all groups in order, published rows after the last group of their dataset."""
    names = Names(groups)
    last = {group.cell.workload: position for position, group in enumerate(groups)}
    made: list[PageRow] = []
    for position, group in enumerate(groups):
        facets = {
            "dataset": group.title,
            "setting": names.setting(group.cell),
            "optimizer": group.cell.optimizer,
            "device": names.device(group),
        }
        places = {standing.system: standing for standing in rank(group.records)}
        for row in merged_rows(group):
            behind = tuple(positions[record.key] for record in group.rounds_by_system[row.system])
            made.append(_measured_row(row, facets, columns=columns, standing=places.get(row.system), records=behind))
        if last[group.cell.workload] == position:
            made += _published_rows(group, columns)
    return tuple(made)


def page_records(source: Source, columns: Sequence[PageColumn], root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Every record as the page carries it, and the environments that they name by position.

    Args:
        source: What is published.
        columns: Of the main table: a record has a text for each, then its samples/s.
        root: Directory that the page lies in.
    """
    made = []
    environments: dict[str, int] = {}
    for group in source.groups:
        # A system that once gave a wrong answer has no number worth printing, of whatever round.
        withheld = {row.system for row in merged_rows(group) if row.status is Status.WRONG_ANSWER}
        for record in group.records:
            # As merged as a row of the table is, but of this round alone
            same_round = tuple(other for other in group.records if other.cell.round == record.cell.round)
            row = next(row for row in merged_rows(Group(group.key, same_round)) if row.system == record.cell.system)
            shown = row.system not in withheld
            texts = [column.column.show(row) if shown or column.text else MISSING for column in columns]
            speed = amount(row.samples_per_s if shown else None)
            where = environments.setdefault(_environment_words(record.environment, group), len(environments))
            made.append(_record(record, [*texts, speed], where=where, file=_link(source, record, root)))
    return made, list(environments)


def positions_of(source: Source) -> dict[str, int]:
    """Position of every record in `page_records`, by key."""
    return {record.key: position for position, record in enumerate(source.records)}


def budget_tables(groups: Sequence[Group], positions: dict[str, int]) -> tuple[BudgetTable, ...]:
    """Every contest's standings at every budget at which they change."""
    names = Names(groups)
    return tuple(_budget_table(contest, names, positions) for contest in contests(groups))


def budget_steps(groups: Sequence[Group]) -> tuple[int, ...]:
    """Budgets of a slider over all contests: powers of two, in bytes, none left out between."""
    budgets = [budget for contest in contests(groups) for budget in contest.budgets]
    if not budgets:
        return ()
    first, last = min(budgets).bit_length() - 1, max(budgets).bit_length() - 1
    return tuple(2**power for power in range(first, last + 1))


def binary_bytes(value: int) -> str:
    """Bytes in the largest binary unit that they fill: 67,108,864 is 64 MiB."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, (value.bit_length() - 1) // 10))
    return f"{value / 1024**power:,.4g} {units[power]}"


def ratio_words(ratio: SpeedRatio) -> str:
    """A ratio of speeds with its interval, or that there is none."""
    interval = "no interval: one round" if ratio.low is None else f"{amount(ratio.low)}, {amount(ratio.high)}"
    return f"{amount(ratio.ratio)} [{interval}]"


def _setting(cell: Cell) -> str:
    parts = [f"{cell.data}, {cell.scale}"]
    if cell.frequency_prefix != 1 or cell.frequency_sketch_bytes is not None:
        parts.append(f"frequencies from the first {100 * cell.frequency_prefix:g} %")
    return ", ".join([*parts, _size(cell)])


def _size(cell: Cell) -> str:
    parts = []
    if cell.cache_ratio is not None:
        parts.append(f"cache ratio {100 * cell.cache_ratio:g} %")
    if cell.device_budget_bytes is not None:
        parts.append(f"device budget {binary_bytes(cell.device_budget_bytes)}")
    return ", ".join(parts) or "no cache size given"


def _device(group: Group) -> str:
    return f"CPU: {group.key.device}" if group.on_cpu else group.key.device


def _measured_row(
    row: Row,
    facets: dict[str, str],
    *,
    columns: Sequence[PageColumn],
    standing: Standing | None,
    records: tuple[int, ...],
) -> PageRow:
    reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
    return PageRow(
        system=row.system,
        facets={**facets, "status": row.status.value},
        place=Entry(text=MISSING, value=None)
        if standing is None
        else Entry(text=_place(standing.place, tied=standing.tied), value=standing.place),
        entries=tuple(Entry(text=column.column.show(row), value=column.value(row)) for column in columns),
        records=records,
        remark=" ".join(f"{note.rstrip('.')}." for note in (reason, *row.notes) if note),
    )


def _place(place: int, *, tied: bool) -> str:
    return f"{place}, {CLOSE}" if tied else str(place)


def _published_rows(group: Group, columns: Sequence[PageColumn]) -> list[PageRow]:
    made = []
    texts_by_row = section(group).published
    for row, texts in zip(published_rows(group.cell.workload), texts_by_row, strict=True):
        shown = dict(zip(("system", *_PUBLISHED_VALUES), texts, strict=False))
        entries = []
        for column in columns:
            if column.header in _PUBLISHED_VALUES:
                value = _PUBLISHED_VALUES[column.header]
                entries.append(Entry(text=shown[column.header], value=getattr(row, value[0]) * value[1]))
            else:
                text = "published" if column.header == "status" else MISSING
                entries.append(Entry(text=text, value=text if column.header == "status" else None))
        made.append(
            PageRow(
                system=row.system,
                facets={
                    "dataset": group.title,
                    "setting": f"real, cache ratio {100 * row.cache_ratio:g} %, batch {row.batch_size:,}",
                    "optimizer": MISSING,
                    "device": row.hardware,
                    "status": "published",
                },
                place=Entry(text=MISSING, value=None),
                entries=tuple(entries),
                remark=_published_remark(row),
                published=True,
            )
        )
    return made


_PUBLISHED_VALUES: dict[str, tuple[str, int]] = {
    "AUROC": ("auroc", 1),
    "accuracy": ("accuracy", 1),
    "it/s": ("steps_per_s", 1),
    "epoch time": ("epoch_s", 1),
    # Printed as GB, meaning GiB
    "GPU GB allocated": ("gpu_allocated_gb", 2**30),
    "GPU GB reserved": ("gpu_reserved_gb", 2**30),
    "CPU GB": ("cpu_gb", 2**30),
}
"""Field of a published row and its factor to SI units, by header, in the order of the published tables."""


def _published_remark(row: PublishedRow) -> str:
    return f"Published by others, on other hardware; there is no record. Source: {row.source}. {NOTE}"


def _record(record: Record, texts: list[str], *, where: int, file: str | None) -> dict[str, Any]:
    environment, checks = record.environment, record.verification.checks if record.verification else ()
    passed = sum(check.passed for check in checks)
    commit = environment.commit[:10] + (", changed" if environment.dirty else "") if environment.commit else MISSING
    return {
        "system": record.cell.system,
        "round": record.cell.round + 1,
        "status": record.status.value,
        "checks": f"{passed} of {len(checks)} checks passed" if checks else "not verified",
        "started": record.started_at,
        "commit": commit,
        "code": environment.code,
        "environment": where,
        "file": file,
        "values": texts,
    }


def _link(source: Source, record: Record, root: Path) -> str | None:
    file = source.files.get(record.key)
    return None if file is None else quote(Path(os.path.relpath(file, root)).as_posix())


def _environment_words(environment: Environment, group: Group) -> str:
    parts = [_device(group), f"{environment.threads} threads", f"{gigabytes(environment.memory_bytes)} GB of memory"]
    if not group.on_cpu and environment.driver:
        parts.append(f"driver {environment.driver}")
    packages = [f"{name} {version}" for name, version in sorted(environment.packages.items())]
    return ", ".join([*parts, environment.os, f"Python {environment.python}", *packages])


def _budget_table(contest: Contest, names: Names, positions: dict[str, int]) -> BudgetTable:
    group = contest.group
    smallest: dict[str, int] = {}
    for contender in contest.contenders:
        smallest[contender.system] = min(smallest.get(contender.system, contender.device_bytes), contender.device_bytes)
    facts = [f"Device bytes: {basis}." for basis in dict.fromkeys(c.basis for c in contest.contenders)]
    if group.on_cpu:
        facts.insert(0, "On a CPU: RAM over disk. The device tier is RAM, and what is offloaded lies in a file.")
    cell = group.cell
    facts.append(f"Batch {cell.batch_size:,}, dim {cell.embedding_dim}, lr {cell.lr:g}, seed {cell.seed}.")
    return BudgetTable(
        heading=f"{group.title}: {cell.data} data, scale {cell.scale}, {cell.optimizer}, on {names.device(group)}",
        facts=tuple(facts),
        standings=tuple(
            (size, tuple(_line(place, positions) for place in standings(contest, size)))
            for size in sorted({contender.device_bytes for contender in contest.contenders})
        ),
        smallest=tuple(sorted(smallest.items(), key=lambda item: (item[1], item[0]))),
    )


def _line(place: Place, positions: dict[str, int]) -> BudgetLine:
    contender: Contender = place.contender
    return BudgetLine(
        cells=(
            _place(place.place, tied=place.tied),
            contender.system,
            _size(contender.group.cell),
            amount(contender.samples_per_s),
            "1, the first" if place.to_first is None else ratio_words(place.to_first),
            f"{contender.device_bytes:,}",
        ),
        records=tuple(positions[record.key] for record in contender.records),
    )
