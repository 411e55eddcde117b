"""Rows of the page's main table, with what each is filtered and sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.report.page.names import Names
from suite.tables.columns import COLUMNS, PAPER, published_cells
from suite.tables.frames import published_numbers
from suite.tables.quantities import MISSING, place_words
from suite.tables.rows import Row, merged_rows, one_line
from suite.tables.statistics import Standing, rank


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
        entries: In order of `suite.tables.columns.COLUMNS`.
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


_NO_PLACE = Entry(text=MISSING, value=None)


def page_rows(groups: Sequence[Group], positions: Mapping[str, int]) -> tuple[PageRow, ...]:
    """Rows of all groups in order, published rows after the last group of their dataset.

    Args:
        groups: What the page shows.
        positions: Of every record in the list that the page carries, by key.
    """
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
        standings = {standing.system: standing for standing in rank(group.records)}
        for row in merged_rows(group):
            behind = tuple(positions[record.key] for record in group.rounds_by_system[row.system])
            made.append(_measured(row, facets, standing=standings.get(row.system), records=behind))
        if last[group.cell.workload] == position:
            made += [_published(row, group.title) for row in published_rows(group.cell.workload)]
    return tuple(made)


def _measured(row: Row, facets: Mapping[str, str], *, standing: Standing | None, records: tuple[int, ...]) -> PageRow:
    reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
    place = _NO_PLACE
    if standing is not None:
        place = Entry(text=place_words(standing.place, tied=standing.tied), value=standing.place)
    return PageRow(
        system=row.system,
        facets={**facets, "status": row.status.value},
        place=place,
        entries=tuple(Entry(text=column.show(row), value=column.value(row)) for column in COLUMNS),
        records=records,
        remark=" ".join(f"{note.rstrip('.')}." for note in (reason, *row.notes) if note),
    )


def _published(row: PublishedRow, title: str) -> PageRow:
    numbers = published_numbers(row)
    texts = dict(zip((column.words for column in PAPER), published_cells(row)[1:], strict=True))
    texts["status"] = "published"
    return PageRow(
        system=row.system,
        facets={
            "dataset": title,
            "setting": f"real, cache ratio {100 * row.cache_ratio:g} %, batch {row.batch_size:,}",
            "optimizer": MISSING,
            "device": row.hardware,
            "status": "published",
        },
        place=_NO_PLACE,
        entries=tuple(
            Entry(text=texts.get(column.words, MISSING), value=numbers.get(column.field)) for column in COLUMNS
        ),
        remark=f"Published by others, on other hardware; there is no record. Source: {row.source}. {NOTE}",
        published=True,
    )
