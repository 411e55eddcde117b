"""Rows on a drive: what systems give within a host budget, in the whole DLRM step and in the embedding step alone."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from suite.records.groups import IN_RAM, REFERENCE, RecordGroup, base_name, is_baseline
from suite.records.record import Status
from suite.tables.columns import AUROC, PRIOR_KNOWLEDGE, STATUS, SYSTEM, hit_rate
from suite.tables.formatting import amount, binary_bytes, count, gigabytes, percent, relative
from suite.tables.rows import Row, merged_rows, remarks, trusted
from suite.tables.settings import caption, headings, on_drive, sweeps
from suite.tables.sheet import Column, Line, ResultTable
from suite.tables.statistics import ITSELF, embedding_turns, met_in_turns, relative_speed
from suite.tables.verdict import listed, never, sentence, strays, widened

RIVALS: Final = ("mapped_table", "rocksdb_table")
"""Common ways to keep rows on a drive; every system beside the baseline is compared with them."""


class Step(StrEnum):
    """The timed part of training."""

    WHOLE = "the whole DLRM step"
    EMBEDDING = "the embedding step alone"


_NAMES: Final = (
    Column(
        words="budget", name="budget", show=binary_bytes, text=True,
        definition="all that a system may keep in memory for rows, the page cache of its files included; "
        f"{IN_RAM} keeps all rows in RAM, outside the budget: the line to reach.",
    ),
    SYSTEM,
)  # fmt: skip
_BESIDE_RAM: Final = Column(
    words=f"vs {IN_RAM}", name="ratio", show=relative, noisy=True,
    definition="speed relative to it in the same turns, with a 95 % interval.",
)  # fmt: skip


def _kilobytes(size: float) -> str:
    return amount(round(size / 1e3, 2))


COLUMNS: Final = {
    Step.WHOLE: (
        *_NAMES,
        replace(
            PRIOR_KNOWLEDGE,
            definition="what the system knew of the ids. Before the clock starts, the most frequent rows of the first "
            f"training data fill the memory of {listed(RIVALS)} too.",
        ),
        Column(words="samples/s", name="samples_per_s", show=amount, noisy=True),
        _BESIDE_RAM,
        AUROC,
        Column(
            words="rows read per sample", name="rows_read", show=amount,
            definition="what the system asked of its file, whatever answered.",
        ),
        Column(
            words="kB read per sample", name="read_bytes", show=_kilobytes,
            definition="by the process from drives, in the timed turns; what the page cache answers is not read.",
        ),
        Column(words="kB written per sample", name="written_bytes", show=_kilobytes),
        Column(
            words="memory held, % of budget", name="held", show=lambda share: percent(share, 1),
            definition="the most that was in use beyond what training took without rows.",
        ),
        Column(words="hits in slots", name="slots_hit_rate", show=hit_rate),
        Column(
            words="hits in RAM", name="ram_hit_rate", show=hit_rate,
            definition="of all distinct rows of the counted batches, those that a level of RAM gave.",
        ),
        STATUS,
    ),
    Step.EMBEDDING: (
        *_NAMES,
        Column(
            words="embedding samples/s", name="samples_per_s", show=amount, noisy=True,
            definition="of the same batches through the embedding tables alone, forward and backward, without MLPs.",
        ),
        _BESIDE_RAM,
        Column(
            words=f"vs {RIVALS[0]}", name=f"over_{RIVALS[0]}", show=relative, noisy=True,
            definition="speed relative to it, from turns with each other where they had some, else through "
            f"ratios to {IN_RAM}; so for other systems.",
        ),
        *(Column(words=f"vs {name}", name=f"over_{name}", show=relative, noisy=True) for name in RIVALS[1:]),
        Column(
            words="rows read, % of drive", name="rows_of_drive", show=percent,
            definition="rows asked of the file per second, as a share of the reads per second that the drive gives at "
            "depth 32, the median over cells: its load where each row is one direct read, and more where the page "
            "cache answers or one read brings several rows.",
        ),
    ),
}  # fmt: skip


def rows_on_drive(groups: Sequence[RecordGroup], step: Step) -> list[dict[str, Any]]:
    """A line per budget and system, in the order of the groups.

    Of the embedding step none where nobody beside the baseline took such turns.
    """
    found = [line for group in groups for line in _lines(group, step)]
    timed = any(line["samples_per_s"] is not None and not is_baseline(line["system"]) for line in found)
    return found if timed or step is Step.WHOLE else []


def is_sound(line: Line) -> bool:
    """Whether a system was timed, ended ok, is verified and exact; the reference is a yardstick."""
    row: Row = line["row"]
    return row.sound and row.samples_per_s is not None and base_name(row.system) != REFERENCE


def disk_tables(groups: Sequence[RecordGroup]) -> tuple[ResultTable, ...]:
    """Two tables per sweep of host budgets, one where the embedding step was not timed."""
    found = sweeps(filter(on_drive, groups))
    heads = headings([one[0] for one in found], sized=False)
    return tuple(
        table
        for sweep, heading in zip(found, heads, strict=True)
        for table in _tables(sweep, f"{heading}, rows on a drive")
    )


def _tables(sweep: Sequence[RecordGroup], heading: str) -> list[ResultTable]:
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    first = ResultTable(
        heading=heading,
        summary=disk_verdict(sweep),
        caption=caption(sweep, *_facts(sweep)),
        columns=COLUMNS[Step.WHOLE],
        lines=tuple(whole),
        notes=tuple(f"{binary_bytes(one['budget'])}, {note}" for one in whole for note in remarks([one["row"]])),
    )
    if not alone:
        return [first]
    return [first, ResultTable(heading="The embedding step alone", columns=COLUMNS[Step.EMBEDDING], lines=tuple(alone))]


def _facts(sweep: Sequence[RecordGroup]) -> Iterator[str]:
    """Tables, drive, and memory of a sweep."""
    dim = sweep[0].cell.embedding_dim
    in_ram = (runs for system, runs in sweep[0].rounds_by_system.items() if is_baseline(system))
    accounts = [one.memory.anatomy_bytes for runs in in_ram for one in trusted(runs)]
    size = max((sum(size for key, size in one.items() if key.endswith("/rows")) for one in accounts), default=0)
    if size:
        yield f"{count(size // (4 * dim))} rows of {dim} floats, {gigabytes(size)} GB in all"
    measured = [run.measurement for group in sweep for run in group.records if run.measurement is not None]
    drives = [one.drive for one in measured if one.drive is not None]
    if drives:
        first, other = (
            _span([round(getattr(one, f"reads_per_s_depth_{depth}")) for one in drives]) for depth in (1, 32)
        )
        yield (
            f"drive: {drives[0].file_system}, random reads of {drives[0].read_bytes:,} bytes past the page cache: "
            f"{first}/s at depth 1, {other}/s at depth 32, measured by {drives[0].measured_by}"
        )
    held = [one.held for one in measured if one.held is not None]
    if held:
        without = _span([round(one.without_rows_bytes / 1e6) for one in held])
        how = " or ".join(dict.fromkeys(one.how for one in held))
        yield f"memory held by {how}, at the budget and what training took without rows ({without} MB)"


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def disk_verdict(sweep: Sequence[RecordGroup]) -> str:
    """The fastest system at each budget, in one sentence, and what cannot be said."""
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    like = {one["budget"]: one["row"] for one in whole if is_baseline(one["system"])}
    fit = [one for one in whole if is_sound(one) and not is_baseline(one["system"])]
    strayed = {
        one["system"]: words
        for one in fit
        if one["budget"] in like and (words := strays(one["row"], like[one["budget"]]))
    }
    told = {(one["budget"], one["system"]): one for one in alone}
    said = []
    for budget in sorted({one["budget"] for one in whole}):
        timed = [one for one in fit if one["budget"] == budget and one["system"] not in strayed]
        whole_turns = [one for one in timed if not one["row"].interrupted]
        if whole_turns:
            best = max(whole_turns, key=lambda one: (one["ratio"].value if one["ratio"] else 0.0, one["samples_per_s"]))
            said.append(_at(best, told.get((budget, best["system"]), best)))
        if left := [one["system"] for one in timed if one["row"].interrupted]:
            said.append(f"at {binary_bytes(budget)} the turns of {listed(left)} were interrupted, see the notes")
    if not said:
        said = [f"nothing can be said: no system beside {IN_RAM} ended ok and was timed"]
    wrong = never(one["row"] for one in whole if one["row"].status is Status.WRONG_ANSWER)
    return sentence([*said, *strayed.values(), *wrong])


def _at(one: Line, alone: Line) -> str:
    """A system's speed at a budget: beside all rows in RAM in the whole step, beside rivals in the embedding step."""
    over = [
        f"{_of(alone, name)} times as fast as {rival}{'' if rival in alone['met'].split() else f' (through {IN_RAM})'}"
        for rival in RIVALS
        if alone[name := f"over_{rival}"] not in (None, ITSELF)
    ]
    speed = f"{one['samples_per_s']:,.0f} samples/s" if one["ratio"] is None else f"{_of(one, 'ratio')} of {IN_RAM}"
    beside_rivals = f", and is {listed(over)} in {alone['step']}" if over else ""
    return f"at {binary_bytes(one['budget'])} {one['system']} trains at {speed}{beside_rivals}"


def _of(one: Line, name: str) -> str:
    """A ratio with its interval, no narrower than the noise floor."""
    noise = one["noise"] or 0.0
    return relative(widened(one[name], noise), noise)


def _lines(group: RecordGroup, step: Step) -> Iterator[dict[str, Any]]:
    """Raw numbers by column; speeds are those of the step."""
    if step is Step.EMBEDDING:
        alone = (run.model_copy(update={"turns": run.turns and embedding_turns(run.turns)}) for run in group.records)
        group = RecordGroup(group.key, tuple(alone))
    rows, budget = merged_rows(group), group.cell.host_budget_bytes or 0
    timed = sorted((row for row in rows if row.samples_per_s), key=lambda row: row.samples_per_s or 0.0)
    fastest = {base_name(row.system): row for row in timed if row.verified != "no"}
    for row in rows:
        held = [one.held for one in row.measurements if one.held is not None and one.held.peak_bytes is not None]
        most = max(((one.peak_bytes or 0) - one.without_rows_bytes for one in held), default=None)
        over = {
            name: ITSELF if fastest[name] is row else relative_speed(row.records, fastest[name].records)
            for name in RIVALS
            if name in fastest and row.samples_per_s
        }
        counted = next((one.traffic for one in row.measurements if one.traffic is not None), None)
        in_ram = (
            counted.rows_from_ram / counted.unique_ids
            if counted and counted.unique_ids and counted.rows_from_ram is not None
            else None
        )
        yield {
            **row.line(),
            **{"step": step.value, "budget": budget},
            **{f"over_{name}": over.get(name) for name in RIVALS},
            "met": " ".join(name for name in over if met_in_turns(row.records, fastest[name].records)),
            **_reading(group, row),
            "held_bytes": most,
            "held": None if most is None else most / budget,
            "slots_hit_rate": None if in_ram is None else row.numbers["hit_rate"],
            "ram_hit_rate": in_ram,
            "row": row,
        }


def _reading(group: RecordGroup, row: Row) -> dict[str, float]:
    """Reads and writes per sample in the turns of all rounds, and the drive's load; NaN: not known."""
    runs = row.records if row.measured_rounds else ()
    taken = [(run.turns.drive, run.cell.batch_size) for run in runs if run.turns and run.turns.drive]
    samples = sum(drive.steps * batch for drive, batch in taken) or math.nan
    rows, read, written = (
        sum(_known(getattr(drive, name)) for drive, _ in taken) / samples
        for name in ("rows_read", "read_bytes", "written_bytes")
    )
    # of all systems: it is one drive, and a single look may meet a busy machine
    drives = [run.measurement.drive for run in group.records if run.measurement and run.measurement.drive]
    reads_per_s = statistics.median(one.reads_per_s_depth_32 for one in drives) if drives else math.nan
    rows_per_s = rows * _known(row.numbers.get("total_steps_per_s")) * group.cell.batch_size
    return {"rows_read": rows, "read_bytes": read, "written_bytes": written, "rows_of_drive": rows_per_s / reads_per_s}


def _known(value: float | None) -> float:
    return math.nan if value is None else value
