"""The tables of rows on a drive, and what follows from them in sentences that a person can act on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from suite.records.groups import IN_RAM, REFERENCE, Group, base_name, is_baseline
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.columns import Columns, relative
from suite.tables.disk import FLOAT_BYTES, RIVALS, OnDrive, Step, drives_of, rows_on_drive, table_rows
from suite.tables.quantities import MISSING, amount, binary_bytes, count, gigabytes, percent, score
from suite.tables.rows import merged_rows
from suite.tables.settings import details, facts, family_headings, on_drive, sweeps
from suite.tables.sheet import Block, Column, lines, notes
from suite.tables.statistics import Estimate
from suite.tables.verdict import AUROC_TOLERANCE, listed, never, not_by_speed, widened
from workloads.schema import SCHEMAS

TITLE = "Rows on a drive: speed within a host budget"
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

    def show(row: OnDrive) -> str:
        if base_name(row.system) == name and row.samples_per_s is not None:
            return "1"
        return relative(row.speed if name == IN_RAM else row.over(name), row.noise)

    return Column(words=f"vs {name}", show=show)


def _kilobytes(row: OnDrive) -> str:
    if row.read_bytes is None or row.written_bytes is None:
        return MISSING
    return f"{amount(row.read_bytes / 1e3)} / {amount(row.written_bytes / 1e3)}"


_NAMES: tuple[Column[OnDrive], ...] = (
    Column(words="budget", show=lambda row: binary_bytes(row.host_budget_bytes), text=True, repeats=True),
    Column(words="system", show=lambda row: row.system, text=True, repeats=True),
)
COLUMNS: dict[Step, tuple[Column[OnDrive], ...]] = {
    Step.WHOLE: (
        *_NAMES,
        Column(words="knew", show=lambda row: row.knew or MISSING, text=True),
        Column(words="samples/s", show=lambda row: amount(row.samples_per_s, row.noise)),
        _vs(IN_RAM),
        Column(words="AUROC", show=lambda row: score(row.auroc)),
        Column(words="rows read per sample", show=lambda row: amount(row.rows_read)),
        Column(words="kB read / written per sample", show=_kilobytes),
        Column(
            words="memory held, % of budget",
            show=lambda row: percent(None if row.held_bytes is None else row.held_bytes / row.host_budget_bytes, 1),
        ),
        Column(words="status", show=lambda row: row.status, text=True),
    ),
    Step.EMBEDDING: (
        *_NAMES,
        Column(words="embedding samples/s", show=lambda row: amount(row.samples_per_s, row.noise)),
        *map(_vs, (IN_RAM, *RIVALS)),
        Column(words="blocks read, % of drive", show=lambda row: percent(row.blocks_of_drive)),
        Column(words="rows read, % of drive", show=lambda row: percent(row.rows_of_drive)),
        Column(words="read over a block a miss", show=lambda row: amount(row.over_blocks)),
        Column(words="read over packed rows", show=lambda row: amount(row.over_packed)),
    ),
}


def disk_blocks(groups: Sequence[Group], columns: Columns = Columns.ALL) -> tuple[Block, ...]:
    """Two blocks per sweep of host budgets, one where the embedding step was not timed; with all columns more facts."""
    found = sweeps(filter(on_drive, groups))
    heads = family_headings([one[0] for one in found])
    return tuple(
        block
        for one, heading in zip(found, heads, strict=True)
        for block in _blocks(one, f"{heading}, rows on a drive", columns)
    )


def disk_verdict(sweep: Sequence[Group]) -> tuple[str, ...]:
    """What follows from one sweep of host budgets."""
    rows = next((found for group in sweep if (found := table_rows(group)) is not None), None)
    size = None if rows is None else rows * _row_bytes(sweep[0])
    return sentences(rows_on_drive(sweep, Step.WHOLE), rows_on_drive(sweep, Step.EMBEDDING), size)


def _blocks(sweep: Sequence[Group], heading: str, columns: Columns) -> list[Block]:
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    failed = [f"{binary_bytes(row.host_budget_bytes)}, {row.system}: {row.why}" for row in whole if row.why]
    noted = dict.fromkeys(
        f"{row.system}: {note}" for group in sweep for row in merged_rows(group) for note in row.notes
    )
    records = [record for group in sweep for record in group.records]
    more = details(sweep) if columns is Columns.ALL else ()
    first = replace(
        _block(sweep, Step.WHOLE, whole),
        heading=heading,
        verdict=disk_verdict(sweep),
        facts=(
            *facts(sweep),
            *_tables(sweep[0]),
            *_drive(records),
            *_memory(records),
            *_intervals([*whole, *alone]),
            *more,
        ),
        notes=(*notes(failed, "Not measured"), *notes(noted)),
    )
    second = replace(_block(sweep, Step.EMBEDDING, alone), heading="The embedding step alone", facts=(_ALONE,))
    return [first, second] if alone else [first]


def _block(sweep: Sequence[Group], step: Step, rows: Sequence[OnDrive]) -> Block:
    shown = [column for column in COLUMNS[step] if any(column.show(row) != MISSING for row in rows)]
    records = {group.cell.host_budget_bytes: group.rounds_by_system for group in sweep}
    keys = ([run.key for run in records[row.host_budget_bytes][row.system]] for row in rows)
    return Block(heading="", heads=tuple(shown), lines=lines(shown, zip(rows, keys, strict=True)))


def _tables(group: Group) -> tuple[str, ...]:
    rows = table_rows(group)
    if rows is None:
        return ()
    schema = SCHEMAS.get(group.cell.workload.partition("@")[0])
    number = f" in {len(schema.categorical)} tables" if schema else ""
    size = f"{gigabytes(rows * _row_bytes(group))} GB"
    return (f"Rows: {count(rows)}{number}, {group.cell.embedding_dim} floats each, {size} in all",)


def _row_bytes(group: Group) -> int:
    return FLOAT_BYTES * group.cell.embedding_dim


def _drive(records: Sequence[Record]) -> tuple[str, ...]:
    drives = drives_of(records)
    kinds = dict.fromkeys((one.file_system, one.read_bytes, one.measured_by) for one in drives)
    found = []
    for kind in kinds:
        like = [one for one in drives if (one.file_system, one.read_bytes, one.measured_by) == kind]
        first, other = (_span([round(getattr(one, f"reads_per_s_depth_{depth}")) for one in like]) for depth in (1, 32))
        found.append(
            f"Drive: {kind[0]}, random reads of {kind[1]:,} bytes past the page cache: {first}/s at depth 1, {other}/s "
            f"at depth 32, measured by {kind[2]}"
        )
    return tuple(found)


def _memory(records: Sequence[Record]) -> tuple[str, ...]:
    measured = [run.measurement for run in records if run.measurement is not None]
    held = [one.held for one in measured if one.held is not None]
    if not held:
        return ()
    without = _span([round(one.without_rows_bytes / 1e6) for one in held])
    how = " or ".join(dict.fromkeys(one.how for one in held))
    return (f"Memory held by: {how}, at the budget and what training took without rows ({without} MB)",)


def _intervals(rows: Iterable[OnDrive]) -> tuple[str, ...]:
    """What they are over; nothing where there is no ratio."""
    builds = [row.builds for row in rows if row.speed is not None]
    if max(builds, default=2) < 2:
        return ("Intervals: none, for every ratio rests on one block of turns",)
    said = "of a system in all rounds; a system is built once a round"
    return (f"Intervals: Student's, 95 %, over blocks of turns, {_span(builds)} {said}",) if builds else ()


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def sentences(whole: Sequence[OnDrive], alone: Sequence[OnDrive], table_bytes: int | None) -> tuple[str, ...]:
    """What systems give at each budget, where a rival comes near, and what cannot be said.

    Rows are of every system at every budget; `alone` those of the embedding step, where it was timed. `table_bytes` are
    of all rows without optimizer state; None: not known.
    """
    sound = [row for row in whole if _is_sound(row)]
    astray = _astray(whole)
    chosen = {budget: row for budget in _budgets(whole) if (row := _best(sound, astray, budget)) is not None}
    said = [_at(row, _same(alone, row), table_bytes) for row in chosen.values()]
    if not said:
        said.append(f"Nothing can be said: no system beside {IN_RAM} ended ok and was timed.")
    elif all(row.speed is None for row in chosen.values()):
        said.append(f"Nothing can be said beside {IN_RAM}, which {_why_not(whole)}.")
    near = [words for rival in RIVALS for words in _near(rival, [*whole, *alone], astray)]
    told = [found for row in chosen.values() for found in (row, _same(alone, row)) if found is not None]
    ratios = [ratio for row in told for ratio in (row.speed, *map(row.over, RIVALS)) if ratio is not None]
    if any(ratio.low is None for ratio in ratios):
        near.append(
            "Nothing can be said of how sure a ratio with `about` is, for it rests on one block of turns: measure "
            "again with more rounds (--rounds)."
        )
    wrong = dict.fromkeys(row.system for row in whole if row.status == Status.WRONG_ANSWER)
    return (*said, *near, *_missing(whole), *astray.values(), *never(list(wrong)))


def _is_sound(row: OnDrive) -> bool:
    """Whether a row may be chosen or compared with."""
    return row.sound and not is_baseline(row.system)


def _budgets(rows: Iterable[OnDrive]) -> list[int]:
    return sorted({row.host_budget_bytes for row in rows})


def _best(rows: Iterable[OnDrive], astray: Iterable[str], budget: int) -> OnDrive | None:
    """The fastest within a budget; a rival only where nobody else is."""
    fit = [row for row in rows if row.host_budget_bytes == budget and row.system not in astray]
    others = [row for row in fit if base_name(row.system) not in RIVALS]
    return max(others or fit, key=lambda row: row.samples_per_s or 0.0, default=None)


def _same(rows: Iterable[OnDrive], like: OnDrive) -> OnDrive | None:
    here = (row for row in rows if row.host_budget_bytes == like.host_budget_bytes)
    return next((row for row in here if row.system == like.system), None)


def _at(row: OnDrive, alone: OnDrive | None, table_bytes: int | None) -> str:
    """How a system does at a budget, in both kinds of step."""
    size = 0.0 if not table_bytes else row.host_budget_bytes / table_bytes
    share = f", {percent(size, 0 if size >= 0.01 else 2)} of the rows' bytes" if size else ""
    rate = f"{count(round(row.samples_per_s or 0))} samples/s"
    speed = rate if row.speed is None else f"{_of(widened(row.speed, row.noise or 0.0))} of {IN_RAM}"
    said = f"At {binary_bytes(row.host_budget_bytes)}{share}, {row.system} trains at {speed}"
    # the whole step is compared only where the embedding step is not: computation hides what rows cost
    for one in (alone, row):
        if one is not None and (words := _over_rivals(one)):
            where = f" in {one.step}" if one is alone else ""
            through = f", {one.compared}" if one.compared not in (None, "in turns") else ""
            return f"{said}, and is {words}{where}{through}."
    return f"{said}."


def _over_rivals(row: OnDrive) -> str:
    found = []
    for rival in RIVALS:
        if (over := _over(row, rival)) is not None:
            close = over.low is not None and over.spans_one
            found.append(f"too close to call with {rival}" if close else f"{_of(over, 1)} times as fast as {rival}")
    return listed(found) if found else ""


def _over(row: OnDrive, rival: str) -> Estimate | None:
    over = row.over(rival)
    return None if over is None else widened(over, row.noise or 0.0)


def _near(rival: str, rows: Sequence[OnDrive], astray: Iterable[str]) -> list[str]:
    """Where a rival comes within 10 % of the best of the others, or passes it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for step in Step:
        sound = [row for row in rows if row.step == step and _is_sound(row)]
        for budget in _budgets(sound):
            best = _best(sound, astray, budget)
            over = _over(best, rival) if best is not None and base_name(best.system) not in RIVALS else None
            if best is not None and over is not None and (over.low or over.value) <= NEAR:
                place = f"in {step} at {binary_bytes(budget)} ({best.system} at {_of(over)} of its speed)"
                found[_nearness(over)].append(place)
    return [f"{rival} {how}: {'; '.join(places)}." for how, places in found.items()]


def _nearness(over: Estimate) -> str:
    """How near a rival comes that the best is so many times as fast as."""
    if (over.high or over.value) < 1:
        return "is faster than all others"
    return f"{'comes' if (over.high or over.value) <= NEAR else 'may come'} within 10 % of the best"


def _missing(rows: Sequence[OnDrive]) -> list[str]:
    """Which systems have nothing at which budgets, and why."""
    budgets = _budgets(rows)
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for system in dict.fromkeys(row.system for row in rows):
        here = {row.host_budget_bytes: row for row in rows if row.system == system}
        for budget in budgets:
            row = here.get(budget)
            if row is None:
                found[system, "was not run"].append(binary_bytes(budget))
            elif row.why:
                found[system, f"ended {row.why}"].append(binary_bytes(budget))
            elif row.verified == "no" and base_name(system) != REFERENCE:
                found[system, "was not verified"].append(binary_bytes(budget))
    return [f"At {listed(places)} {system} {why.rstrip('.')}." for (system, why), places in found.items()]


def _astray(rows: Iterable[OnDrive]) -> dict[str, str]:
    """Systems whose AUROC is not the baseline's at the same budget, and the sentence that says so."""
    rows = list(rows)
    like = {row.host_budget_bytes: row for row in rows if is_baseline(row.system)}
    found: dict[str, str] = {}
    for row in filter(_is_sound, rows):
        right = like.get(row.host_budget_bytes)
        if right is None or row.auroc is None or right.auroc is None:
            continue
        if abs(row.auroc - right.auroc) > AUROC_TOLERANCE:
            words = not_by_speed(row.system, row.auroc, like=right.system, right=right.auroc)
            found.setdefault(row.system, words)
    return found


def _why_not(rows: Iterable[OnDrive]) -> str:
    """Why nothing stands beside all rows in RAM."""
    found = [row for row in rows if is_baseline(row.system)]
    if not found:
        return "took no part"
    return next((f"ended {row.why.rstrip('.')}" for row in found if row.why), "took no turns with the others")


def _of(ratio: Estimate, wide: int = 2) -> str:
    """A ratio as `0.93 to 0.97`, rounded outward; above 2 with so many decimals as `wide`."""

    def places(bound: float) -> int:
        return 2 if bound < 2 else wide

    if ratio.low is None or ratio.high is None:
        return f"about {ratio.value:.{places(ratio.value)}f}"
    decimals = places(ratio.low)
    scale = 10.0**decimals
    low, high = math.floor(round(scale * ratio.low, 6)) / scale, math.ceil(round(scale * ratio.high, 6)) / scale
    return f"{low:.{decimals}f}" if low == high else f"{low:.{decimals}f} to {high:.{decimals}f}"
