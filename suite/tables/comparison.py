"""The comparison: a table per group of records that may be compared."""

from collections.abc import Iterator, Sequence

from suite.records.groups import RecordGroup
from suite.records.record import Status
from suite.tables.approximate import approximate_tables
from suite.tables.columns import MAIN, REST
from suite.tables.disk import disk_tables
from suite.tables.ranks import rank_tables
from suite.tables.rows import Row, baseline_repeat, merged_rows, remarks
from suite.tables.settings import caption, headings, on_drive, on_ranks
from suite.tables.sheet import ResultTable, Sheet
from suite.tables.verdict import listed, verdict


def comparison(groups: Sequence[RecordGroup]) -> Sheet:
    """Per group a table of the main columns, with the rest of them. The baseline's repeat is in the CSV alone.

    Approximate systems have a table of their own; so have rows on a drive, and ranks, behind all others.
    """
    plain = [group for group in groups if not on_drive(group) and not on_ranks(group)]
    tables: list[ResultTable] = []
    for group, heading in zip(plain, headings(plain), strict=True):
        tables += [_table(group, heading), *approximate_tables(group)]
    return Sheet(
        name="comparison",
        title="Comparison of embedding offload systems" if groups else "No records yet: run the benchmark first",
        tables=(*tables, *disk_tables(groups), *rank_tables(groups)),
    )


def _table(group: RecordGroup, heading: str) -> ResultTable:
    rows = [row for row in merged_rows(group) if row.exact]
    alike = [row for row in rows if row.same_kernel_as is not None and row.status is Status.OK]
    repeat = baseline_repeat(group)
    return ResultTable(
        heading=heading,
        summary=verdict(group),
        caption=caption([group]),
        columns=MAIN,
        more=REST,
        lines=tuple(row.line() for row in rows if row not in alike),
        unshown=tuple(row.line() for row in (*alike, repeat) if row is not None),
        notes=tuple(dict.fromkeys([*_alike(alike), *remarks(rows)])),
    )


def _alike(rows: Sequence[Row]) -> Iterator[str]:
    """Systems that are another one's kernel here, which only files of raw numbers show."""
    for kernel in dict.fromkeys(row.same_kernel_as for row in rows):
        names = [row.system for row in rows if row.same_kernel_as == kernel]
        verb = "is" if len(names) == 1 else "are"
        yield f"{listed(names)} {verb} {kernel}'s kernel on the same memory here: not timed again, and in the CSV alone"
