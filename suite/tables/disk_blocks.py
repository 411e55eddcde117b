"""The tables of rows on a drive, and what follows from them in sentences that a person can act on."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from suite.records.groups import IN_RAM, Group, base_name, is_baseline
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.columns import Columns
from suite.tables.disk import FLOAT_BYTES, RIVALS, OnDrive, Step, drives_of, rows_on_drive, table_rows
from suite.tables.quantities import MISSING, amount, binary_bytes, count, gigabytes, percent, relative, score
from suite.tables.rows import failure, merged_rows, remarks
from suite.tables.settings import details, facts, headings, on_drive, sweeps
from suite.tables.sheet import Block, Column, Sheet, block, raw_frame, setting_numbers
from suite.tables.statistics import Estimate
from suite.tables.verdict import listed, never, strays, widened
from workloads.schema import SCHEMAS

_TITLE = "Rows on a drive: speed within a host budget"
LEGEND = (
    "Budget: all that a system may keep in memory for rows, the page cache of its files included; KiB, MiB, GiB = "
    f"powers of 1024. {IN_RAM} keeps all rows in RAM, outside the budget: the line to reach.",
    "Memory held: the most that was in use beyond what training took without rows.",
    f"vs {IN_RAM}: speed relative to it in the same turns, with a 95 % interval over blocks of turns; vs another "
    f"system: the same, from turns with each other where they had some, else through their ratios to {IN_RAM}.",
    "Read and written: by the process from and to drives, in the timed turns; what the page cache answers is not "
    "read. Rows read: what the system asked of its file, whatever answered.",
    "Blocks read, of drive: bytes read over the size of the drive's measured reads, per second, as a share of the "
    "reads per second that it gives at depth 32, the median over cells. It understates reads smaller than a block, "
    "such as direct reads of 512 bytes, and overstates large ones, such as reading ahead.",
    "Rows read, of drive: rows asked of the file per second, as a share of the same. It is the drive's load where each "
    "row is one direct read, and more than that where the page cache answers or one read brings several rows.",
    "Read over a block a miss: bytes read over the least possible with a block for every missing row. Read over packed "
    "rows: over the bytes of the missing rows alone, without optimizer state. Missing rows: rows read, else those "
    "counted before the turns.",
)
NEAR: Final = 1.1
"""A rival that is beaten by no more than this is named."""
_ALONE = "The same batches through the embedding tables alone, forward and backward, without the MLPs"


def _vs(name: str) -> Column[OnDrive]:
    """Speed relative to the baseline or a rival."""

    def show(one: OnDrive) -> str:
        if base_name(one.row.system) == name and one.row.samples_per_s is not None:
            return "1"
        return relative(one.speed if name == IN_RAM else one.over.get(name), one.row.noise)

    return Column(words=f"vs {name}", show=show)


def _kilobytes(one: OnDrive) -> str:
    sizes = [one.reading[name] for name in ("read_bytes", "written_bytes")]
    return MISSING if None in sizes else " / ".join(amount((size or 0.0) / 1e3) for size in sizes)


_NAMES: tuple[Column[OnDrive], ...] = (
    Column(words="budget", show=lambda one: binary_bytes(one.budget), text=True, repeats=True),
    Column(words="system", show=lambda one: one.row.system, text=True, repeats=True),
)
COLUMNS: dict[Step, tuple[Column[OnDrive], ...]] = {
    Step.WHOLE: (
        *_NAMES,
        Column(words="knew", show=lambda one: one.row.knew or MISSING, text=True),
        Column(words="samples/s", show=lambda one: amount(one.row.samples_per_s, one.row.noise)),
        _vs(IN_RAM),
        Column(words="AUROC", show=lambda one: score(one.row.auroc)),
        Column(words="rows read per sample", show=lambda one: amount(one.reading["rows_read"])),
        Column(words="kB read / written per sample", show=_kilobytes),
        Column(
            words="memory held, % of budget",
            show=lambda one: percent(None if one.held_bytes is None else one.held_bytes / one.budget, 1),
        ),
        Column(words="status", show=lambda one: one.row.status, text=True),
    ),
    Step.EMBEDDING: (
        *_NAMES,
        Column(words="embedding samples/s", show=lambda one: amount(one.row.samples_per_s, one.row.noise)),
        *map(_vs, (IN_RAM, *RIVALS)),
        Column(words="blocks read, % of drive", show=lambda one: percent(one.reading["blocks_of_drive"])),
        Column(words="rows read, % of drive", show=lambda one: percent(one.reading["rows_of_drive"])),
        Column(words="read over a block a miss", show=lambda one: amount(one.reading["over_blocks"])),
        Column(words="read over packed rows", show=lambda one: amount(one.reading["over_packed"])),
    ),
}


def disk_blocks(groups: Sequence[Group], columns: Columns = Columns.ALL) -> tuple[Block, ...]:
    """Two blocks per sweep of host budgets, one where the embedding step was not timed; with all columns more facts."""
    found = sweeps(filter(on_drive, groups))
    heads = headings([one[0] for one in found], sized=False)
    return tuple(
        made
        for one, heading in zip(found, heads, strict=True)
        for made in _blocks(one, f"{heading}, rows on a drive", columns)
    )


def disk_sheet(groups: Sequence[Group]) -> Sheet:
    """The blocks of rows on a drive."""
    numbers = [
        setting_numbers(one.row.records) | one.numbers
        for step in Step
        for group in filter(on_drive, groups)
        for one in rows_on_drive([group], step)
    ]
    return Sheet(name="disk", title=_TITLE, legend=LEGEND, blocks=disk_blocks(groups), frame=raw_frame(numbers))


def disk_verdict(sweep: Sequence[Group]) -> tuple[str, ...]:
    """What systems give at each budget, where a rival comes near, and what cannot be said."""
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    astray = _astray(whole)
    chosen = [one for budget in _budgets(whole) if (one := _best(whole, astray, budget)) is not None]
    told = {(one.budget, one.row.system): one for one in alone}
    said = [_at(one, told.get((one.budget, one.row.system)), _table_bytes(sweep[0])) for one in chosen]
    if not said:
        said = [f"Nothing can be said: no system beside {IN_RAM} ended ok and was timed."]
    elif all(one.speed is None for one in chosen):
        said.append(f"Nothing can be said beside {IN_RAM}: it did not take turns with the others.")
    near = [words for rival in RIVALS for words in _near(rival, (whole, alone), astray)]
    wrong = dict.fromkeys(one.row.system for one in whole if one.row.status is Status.WRONG_ANSWER)
    return (*said, *near, *astray.values(), *never(list(wrong)))


def _blocks(sweep: Sequence[Group], heading: str, columns: Columns) -> list[Block]:
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    records = [record for group in sweep for record in group.records]
    failed = [(one.budget, one.row) for one in whole if one.row.status is not Status.OK]
    first = block(
        COLUMNS[Step.WHOLE],
        [(one, one.row.records) for one in whole],
        heading=heading,
        verdict=disk_verdict(sweep),
        facts=(
            *facts(sweep),
            *_tables(sweep[0]),
            *_drive(records),
            *_memory(records),
            *_intervals([*whole, *alone]),
            *(details(sweep) if columns is Columns.ALL else ()),
        ),
        notes={
            "Not measured": [f"{binary_bytes(budget)}, {row.system}: {failure(row)}" for budget, row in failed],
            "Notes": remarks(row for group in sweep for row in merged_rows(group))["Notes"],
        },
    )
    if not alone:
        return [first]
    second = [(one, one.row.records) for one in alone]
    return [first, block(COLUMNS[Step.EMBEDDING], second, heading="The embedding step alone", facts=(_ALONE,))]


def _tables(group: Group) -> Iterator[str]:
    rows, size = table_rows(group), _table_bytes(group)
    if rows is not None:
        schema = SCHEMAS.get(group.cell.workload.partition("@")[0])
        number = f" in {len(schema.categorical)} tables" if schema else ""
        yield f"Rows: {count(rows)}{number}, {group.cell.embedding_dim} floats each, {gigabytes(size)} GB in all"


def _table_bytes(group: Group) -> int | None:
    """Of all rows without optimizer state; None: not known."""
    rows = table_rows(group)
    return None if rows is None else rows * FLOAT_BYTES * group.cell.embedding_dim


def _drive(records: Sequence[Record]) -> Iterator[str]:
    drives = drives_of(records)
    for kind in dict.fromkeys((one.file_system, one.read_bytes, one.measured_by) for one in drives):
        like = [one for one in drives if (one.file_system, one.read_bytes, one.measured_by) == kind]
        first, other = (_span([round(getattr(one, f"reads_per_s_depth_{depth}")) for one in like]) for depth in (1, 32))
        yield (
            f"Drive: {kind[0]}, random reads of {kind[1]:,} bytes past the page cache: {first}/s at depth 1, {other}/s "
            f"at depth 32, measured by {kind[2]}"
        )


def _memory(records: Sequence[Record]) -> Iterator[str]:
    held = [run.measurement.held for run in records if run.measurement is not None and run.measurement.held is not None]
    if held:
        without = _span([round(one.without_rows_bytes / 1e6) for one in held])
        how = " or ".join(dict.fromkeys(one.how for one in held))
        yield f"Memory held by: {how}, at the budget and what training took without rows ({without} MB)"


def _intervals(rows: Iterable[OnDrive]) -> Iterator[str]:
    """What they are over; nothing where there is no ratio."""
    builds = [one.row.builds for one in rows if one.speed is not None]
    if max(builds, default=2) < 2:
        yield "Intervals: none, for every ratio rests on one block of turns"
    elif builds:
        said = "of a system in all rounds; a system is built once a round"
        yield f"Intervals: Student's, 95 %, over blocks of turns, {_span(builds)} {said}"


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _budgets(rows: Iterable[OnDrive]) -> list[int]:
    return sorted({one.budget for one in rows})


def _best(rows: Iterable[OnDrive], astray: Iterable[str], budget: int) -> OnDrive | None:
    """The fastest within a budget; a rival only where nobody else is."""
    fit = [one for one in rows if one.budget == budget and _may_be_chosen(one) and one.row.system not in astray]
    others = [one for one in fit if base_name(one.row.system) not in RIVALS]
    return max(others or fit, key=lambda one: one.row.samples_per_s or 0.0, default=None)


def _may_be_chosen(one: OnDrive) -> bool:
    return one.sound and not is_baseline(one.row.system)


def _at(one: OnDrive, alone: OnDrive | None, table_bytes: int | None) -> str:
    """How a system does at a budget, in both kinds of step."""
    size = 0.0 if not table_bytes else one.budget / table_bytes
    share = f", {percent(size, 0 if size >= 0.01 else 2)} of the rows' bytes" if size else ""
    rate = f"{count(round(one.row.samples_per_s or 0))} samples/s"
    speed = rate if one.speed is None else f"{_of(widened(one.speed, one.row.noise or 0.0))} of {IN_RAM}"
    said = f"At {binary_bytes(one.budget)}{share}, {one.row.system} trains at {speed}"
    # the whole step is compared only where the embedding step is not: computation hides what rows cost
    if alone is not None and alone.over:
        through = "" if alone.compared == "in turns" else f", {alone.compared}"
        return f"{said}, and is {_over_rivals(alone)} in {alone.step}{through}."
    return f"{said}, and is {_over_rivals(one)}." if one.over else f"{said}."


def _over_rivals(one: OnDrive) -> str:
    found = []
    for rival, ratio in one.over.items():
        over = widened(ratio, one.row.noise or 0.0)
        close = over.low is not None and over.spans_one
        found.append(f"too close to call with {rival}" if close else f"{_of(over, 1)} times as fast as {rival}")
    return listed(found)


def _near(rival: str, steps: Iterable[Sequence[OnDrive]], astray: Iterable[str]) -> list[str]:
    """Where a rival comes within 10 % of the best of the others, or passes it."""
    places = []
    for rows in steps:
        for budget in _budgets(rows):
            best = _best(rows, astray, budget)
            if best is None or rival not in best.over or base_name(best.row.system) in RIVALS:
                continue
            over = widened(best.over[rival], best.row.noise or 0.0)
            if (over.low or over.value) <= NEAR:
                place = f"in {best.step} at {binary_bytes(budget)}"
                places.append(f"{place} ({best.row.system} at {_of(over)} of its speed)")
    return [f"{rival} may come within 10 % of the best: {'; '.join(places)}."] if places else []


def _astray(rows: Sequence[OnDrive]) -> dict[str, str]:
    """Systems whose AUROC is not the baseline's at the same budget, and the sentence that says so."""
    like = {one.budget: one.row for one in rows if is_baseline(one.row.system)}
    found: dict[str, str] = {}
    for one in filter(_may_be_chosen, rows):
        if one.budget in like and (said := strays(one.row, like[one.budget])):
            found.setdefault(one.row.system, said)
    return found


def _of(ratio: Estimate, wide: int = 2) -> str:
    """A ratio as `0.93 to 0.97`, rounded outward; above 2 with so many decimals as `wide`."""
    decimals = 2 if (ratio.low or ratio.value) < 2 else wide
    if ratio.low is None or ratio.high is None:
        return f"about {ratio.value:.{decimals}f}"
    scale = 10.0**decimals
    low, high = math.floor(round(scale * ratio.low, 6)) / scale, math.ceil(round(scale * ratio.high, 6)) / scale
    return f"{low:.{decimals}f}" if low == high else f"{low:.{decimals}f} to {high:.{decimals}f}"
