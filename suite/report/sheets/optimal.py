"""How far every cache is from the optimum: misses and bytes relative to the least possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Record
from suite.report.sheets.blocks import group_block, group_numbers
from suite.report.source import Source
from suite.simulate.results import Simulation
from suite.tables.quantities import MISSING, amount, count, megabytes, percent
from suite.tables.rows import Row, bytes_moved, merged_rows, trusted
from suite.tables.settings import headings, told_apart
from suite.tables.sheet import Block, Column, Sheet, lines, notes, raw_frame

_LEGEND = (
    "Optimal misses and minimum bytes: of Belady's rule, simulated on the same steps with as many slots; no cache can "
    "miss or move less.",
    "Unique misses: distinct rows of a batch that were not on the device, counted before anything was fetched; hit "
    "rate: the share of distinct rows that were. Bytes moved: fetched and written back, optimizer state included. "
    "MB = 1e6 bytes; n/a = does not exist or is not known.",
    "Measured rows: counted while training, in the counted steps of the first round. Simulated rows: the ids of a "
    "stream replayed through a policy without weights and without a clock.",
)


@dataclass(frozen=True, kw_only=True)
class _Distance:
    """A row of the sheet. None: does not exist or is not known."""

    system: str
    kind: str
    cache_ratio: float | None
    slots: int | None
    steps: int
    hit_rate: float | None
    unique_misses: int | None
    optimal_unique_misses: int | None
    misses_over_optimum: float | None
    bytes_moved: int | None
    minimum_bytes: int | None
    bytes_over_minimum: float | None


_COLUMNS: tuple[Column[_Distance], ...] = (
    Column(words="system or policy", show=lambda row: row.system, text=True),
    Column(words="row is", show=lambda row: row.kind, text=True),
    Column(
        words="cache ratio", show=lambda row: MISSING if row.cache_ratio is None else f"{100 * row.cache_ratio:g} %"
    ),
    Column(words="slots", show=lambda row: count(row.slots)),
    Column(words="steps", show=lambda row: count(row.steps)),
    Column(words="hit rate", show=lambda row: percent(row.hit_rate, 2)),
    Column(words="unique misses", show=lambda row: count(row.unique_misses)),
    Column(words="optimal misses", show=lambda row: count(row.optimal_unique_misses)),
    Column(words="misses, % of optimal", show=lambda row: percent(row.misses_over_optimum, 1)),
    Column(words="MB moved", show=lambda row: megabytes(row.bytes_moved)),
    Column(words="minimum MB", show=lambda row: megabytes(row.minimum_bytes)),
    Column(words="bytes over minimum", show=lambda row: amount(row.bytes_over_minimum)),
)


def optimal_sheet(source: Source) -> Sheet | None:
    """A block per group with a simulated optimum, then one per simulation; None where there is neither."""
    blocks: list[Block] = []
    numbers: list[dict[str, object]] = []
    for group, heading in zip(source.groups, headings(source.groups), strict=True):
        found = [
            distance
            for row in merged_rows(group)
            if not row.again and (distance := _measured(group, row, group.rounds_by_system[row.system])) is not None
        ]
        if found:
            blocks.append(group_block(group, heading, _COLUMNS, found))
            numbers += group_numbers(group, found)
    shown = [(one, distances) for one in source.simulations if (distances := _simulated(one))]
    for (simulation, distances), heading in zip(shown, _headings([one for one, _ in shown]), strict=True):
        blocks.append(_simulated_block(simulation, distances, heading))
        setting = _simulated_setting(simulation)
        numbers += [setting | vars(distance) for distance in distances]
    if not blocks:
        return None
    return Sheet(
        name="optimal",
        title="Distance to the optimal cache",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers),
    )


def _measured(group: Group, row: Row, runs: Sequence[Record]) -> _Distance | None:
    """Of the round that was counted and has an optimum; None where there is no such round."""
    counted = [
        (traffic, run.optimum)
        for run in runs
        if run.measurement is not None and (traffic := run.measurement.traffic) is not None and run.optimum is not None
    ]
    if not counted or not trusted(runs):
        return None
    ((traffic, best),) = counted
    return _Distance(
        system=row.system,
        kind="measured",
        cache_ratio=group.cell.cache_ratio,
        slots=best.slots,
        steps=traffic.steps,
        hit_rate=row.hit_rate,
        unique_misses=traffic.unique_misses,
        optimal_unique_misses=best.unique_misses,
        misses_over_optimum=row.misses_over_optimum,
        bytes_moved=bytes_moved(traffic),
        minimum_bytes=best.bytes_moved,
        bytes_over_minimum=row.bytes_over_minimum,
    )


def _simulated(simulation: Simulation) -> list[_Distance]:
    """The rows that replayed something."""
    return [
        _Distance(
            system=row.policy,
            kind="simulated",
            cache_ratio=row.cache_ratio,
            slots=row.slots,
            steps=row.traffic.batches,
            hit_rate=row.traffic.hit_rate,
            unique_misses=row.traffic.unique_misses,
            optimal_unique_misses=None if row.least is None else row.least.unique_misses,
            misses_over_optimum=row.of_least_misses,
            bytes_moved=row.traffic.bytes_moved,
            minimum_bytes=None if row.least is None else row.least.bytes_moved,
            bytes_over_minimum=row.of_least_bytes,
        )
        for row in simulation.rows
        if row.traffic is not None
    ]


def _headings(simulations: Sequence[Simulation]) -> list[str]:
    plain = [
        f"{found.stream.name}, simulated: {_data(found)}, scale {found.stream.scale}, "
        f"batch {found.stream.batch_size:,}, {found.configuration.optimizer}, dim {found.configuration.embedding_dim}"
        for found in simulations
    ]
    return told_apart(plain, [f"simulation {number}" for number in range(1, len(plain) + 1)])


def _simulated_block(simulation: Simulation, distances: Sequence[_Distance], heading: str) -> Block:
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
        heads=_COLUMNS,
        lines=lines(_COLUMNS, ((distance, ()) for distance in distances)),
        notes=notes((*cut, *failed)),
    )


def _data(simulation: Simulation) -> str:
    stream = simulation.stream
    if stream.trace_file is not None:
        return "ids of a trace file"
    return "synthetic data" if stream.data_dir is None else "real data"


def _simulated_setting(simulation: Simulation) -> dict[str, object]:
    stream, how = simulation.stream, simulation.configuration
    return {
        "workload": stream.workload or stream.name,
        "data": _data(simulation).removesuffix(" data"),
        "scale": stream.scale,
        "optimizer": how.optimizer,
        "batch_size": stream.batch_size,
        "embedding_dim": how.embedding_dim,
        "seed": stream.seed,
    }
