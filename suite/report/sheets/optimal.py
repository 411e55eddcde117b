"""How far every cache is from the optimum: misses and bytes relative to the least possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Record, Traffic
from suite.report.sheets.blocks import (
    block_facts,
    count,
    headings,
    percent,
    raw_frame,
    record_keys,
    setting_numbers,
    told_apart,
    trusted,
)
from suite.report.sheets.sheet import Block, Head, Line, Sheet
from suite.report.source import Source
from suite.simulate import results
from suite.simulate.results import Simulation
from suite.tables.quantities import MISSING, amount, megabytes
from suite.tables.rows import Row, merged_rows

_HEADS = (
    Head(words="system or policy", text=True),
    Head(words="row is", text=True),
    Head(words="cache ratio"),
    Head(words="slots"),
    Head(words="steps"),
    Head(words="hit rate"),
    Head(words="unique misses"),
    Head(words="optimal misses"),
    Head(words="misses, % of optimal"),
    Head(words="MB moved"),
    Head(words="minimum MB"),
    Head(words="bytes over minimum"),
)
_LEGEND = (
    "Optimal misses and minimum bytes: of Belady's rule, simulated on the same steps with as many slots; no cache can "
    "miss or move less.",
    "Unique misses: distinct rows of a batch that were not on the device, counted before anything was fetched; hit "
    "rate: the share of distinct rows that were. Bytes moved: fetched and written back, optimizer state included. "
    "MB = 1e6 bytes; n/a = does not exist or is not known.",
    "Measured rows: counted while training, summed over the counted steps of all rounds; the two ratios are medians "
    "over rounds. Simulated rows: the ids of a stream replayed through a policy without weights and without a clock.",
)
_COLUMNS = {
    "system": "object",
    "slots": "Int64",
    "steps": "Int64",
    "hit_rate": "Float64",
    "unique_misses": "Int64",
    "optimal_unique_misses": "Int64",
    "misses_over_optimum": "Float64",
    "bytes_moved": "Int64",
    "minimum_bytes": "Int64",
    "bytes_over_minimum": "Float64",
}


@dataclass(frozen=True, kw_only=True)
class _Distance:
    """A row of the sheet. None: does not exist or is not known."""

    system: str
    slots: int | None
    steps: int
    hit_rate: float | None
    unique_misses: int | None
    optimal_unique_misses: int | None
    misses_over_optimum: float | None
    bytes_moved: int | None
    minimum_bytes: int | None
    bytes_over_minimum: float | None


def optimal_sheet(source: Source) -> Sheet | None:
    """A block per group with a simulated optimum, then one per simulation; None where there is neither."""
    blocks, numbers = [], []
    for group, heading in zip(source.groups, headings(source.groups), strict=True):
        found = [
            (distance, group.rounds_by_system[row.system])
            for row in merged_rows(group)
            if (distance := _measured(row, group.rounds_by_system[row.system])) is not None
        ]
        if found:
            blocks.append(_measured_block(group, heading, found))
            numbers += [setting_numbers(group, runs) | vars(distance) for distance, runs in found]
    shown = [found for found in source.simulations if any(row.traffic is not None for row in found.rows)]
    for simulation, heading in zip(shown, _simulated_headings(shown), strict=True):
        blocks.append(_simulated_block(simulation, heading))
        numbers += _simulated_numbers(simulation)
    if not blocks:
        return None
    return Sheet(
        name="optimal",
        title="Distance to the optimal cache",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers, _COLUMNS),
    )


def _measured(row: Row, runs: Sequence[Record]) -> _Distance | None:
    """Sums over the rounds that were counted and have an optimum; None where there is no such round."""
    if not trusted(runs):
        return None
    pairs = [
        (run.measurement.traffic, run.optimum)
        for run in runs
        if run.measurement is not None and run.optimum is not None
    ]
    if not pairs:
        return None
    slots = {best.slots for _, best in pairs}
    traffics = [traffic for traffic, _ in pairs]
    return _Distance(
        system=row.system,
        slots=slots.pop() if len(slots) == 1 else None,
        steps=sum(traffic.steps for traffic in traffics),
        hit_rate=row.hit_rate,
        unique_misses=_total(traffics, lambda traffic: traffic.unique_misses),
        optimal_unique_misses=sum(best.unique_misses for _, best in pairs),
        misses_over_optimum=row.misses_over_optimum,
        bytes_moved=_total(traffics, _moved),
        minimum_bytes=sum(best.bytes_moved for _, best in pairs),
        bytes_over_minimum=row.bytes_over_minimum,
    )


def _total(traffics: Sequence[Traffic], value: Callable[[Traffic], int | None]) -> int | None:
    """None where a round does not know, since the rest would understate it."""
    known = [number for traffic in traffics if (number := value(traffic)) is not None]
    return sum(known) if len(known) == len(traffics) else None


def _moved(traffic: Traffic) -> int | None:
    if traffic.bytes_fetched is None or traffic.bytes_written_back is None:
        return None
    return traffic.bytes_fetched + traffic.bytes_written_back


def _measured_block(group: Group, heading: str, found: Sequence[tuple[_Distance, Sequence[Record]]]) -> Block:
    return Block(
        heading=heading,
        facts=block_facts(group),
        heads=_HEADS,
        lines=tuple(
            Line(cells=_cells(distance, kind="measured", ratio=group.cell.cache_ratio), keys=record_keys(runs))
            for distance, runs in found
        ),
    )


def _simulated(row: results.Row) -> _Distance | None:
    traffic, least = row.traffic, row.least
    if traffic is None:
        return None
    return _Distance(
        system=row.policy,
        slots=row.slots,
        steps=traffic.batches,
        hit_rate=traffic.hit_rate,
        unique_misses=traffic.unique_misses,
        optimal_unique_misses=None if least is None else least.unique_misses,
        misses_over_optimum=row.of_least_misses,
        bytes_moved=traffic.bytes_moved,
        minimum_bytes=None if least is None else least.bytes_moved,
        bytes_over_minimum=row.of_least_bytes,
    )


def _simulated_headings(simulations: Sequence[Simulation]) -> list[str]:
    plain = [
        f"{found.stream.name}, simulated: {_data(found)}, scale {found.stream.scale}, "
        f"batch {found.stream.batch_size:,}, {found.configuration.optimizer}, dim {found.configuration.embedding_dim}"
        for found in simulations
    ]
    return told_apart(plain, [f"simulation {number}" for number in range(1, len(plain) + 1)])


def _simulated_block(simulation: Simulation, heading: str) -> Block:
    stream, how = simulation.stream, simulation.configuration
    failed = [
        f"{row.policy} at {row.cache_ratio:g}: {row.status}: {row.reason}" for row in simulation.rows if row.reason
    ]
    cut = () if simulation.complete else ("The simulation was interrupted: rows are missing.",)
    return Block(
        heading=heading,
        facts=(
            "Simulated, not measured: nothing here was trained, and nothing is said of speed.",
            f"Stream: {stream.rows:,} rows in {len(stream.tables)} tables, seed {stream.seed}, frequencies from the "
            f"first {100 * stream.frequency_prefix:g} % of training.",
            f"Steps: {how.warmup_batches:,} batches replayed before counting, {how.counted_batches:,} counted.",
        ),
        heads=_HEADS,
        lines=tuple(
            Line(cells=_cells(distance, kind="simulated", ratio=row.cache_ratio))
            for row in simulation.rows
            if (distance := _simulated(row)) is not None
        ),
        notes=(*cut, *failed),
    )


def _data(simulation: Simulation) -> str:
    stream = simulation.stream
    if stream.trace_file is not None:
        return "ids of a trace file"
    return "synthetic data" if stream.data_dir is None else "real data"


def _simulated_numbers(simulation: Simulation) -> list[dict[str, object]]:
    stream, how = simulation.stream, simulation.configuration
    setting = {
        "kind": "simulated",
        "workload": stream.workload or stream.name,
        "data": _data(simulation).removesuffix(" data"),
        "scale": stream.scale,
        "optimizer": how.optimizer,
        "batch_size": stream.batch_size,
        "embedding_dim": how.embedding_dim,
        "seed": stream.seed,
    }
    return [
        setting | {"cache_ratio": row.cache_ratio} | vars(distance)
        for row in simulation.rows
        if (distance := _simulated(row)) is not None
    ]


def _cells(distance: _Distance, *, kind: str, ratio: float | None) -> tuple[str, ...]:
    return (
        distance.system,
        kind,
        MISSING if ratio is None else f"{100 * ratio:g} %",
        count(distance.slots),
        count(distance.steps),
        percent(distance.hit_rate, decimals=2),
        count(distance.unique_misses),
        count(distance.optimal_unique_misses),
        percent(distance.misses_over_optimum, decimals=1),
        megabytes(distance.bytes_moved),
        megabytes(distance.minimum_bytes),
        amount(distance.bytes_over_minimum),
    )
