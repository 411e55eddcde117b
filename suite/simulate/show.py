"""A simulation in a terminal, whatever its width."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from suite.simulate.models.registry import BOUNDS
from suite.simulate.results import SimulatedRow, SimulatedTraffic, Simulation
from suite.tables.formatting import MISSING, amount
from suite.tables.terminal import print_line, print_table

DETAILED_SIZES = 3
"""Up to so many cache sizes are shown with counts and bytes; more with rates alone."""
_FREE_START = 0.25
"""Slots relative to the least misses from which on it matters what a cache starts with."""
_LEGEND = (
    "Hit rate: 1 - unique misses / unique ids, before anything is fetched. The least: what Belady's rule misses and "
    "moves, batch by batch, with as many slots over the same batches, past the cache where the policy may. MB: 1e6 "
    "bytes, optimizer state included. At: cached share of the rows."
)

Value = Callable[[SimulatedRow, SimulatedTraffic], str]


def _of_least(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


_RATES: tuple[tuple[str, Value], ...] = (
    ("hit\nrate %", lambda _, traffic: f"{100 * traffic.hit_rate:.2f}"),
    ("misses, %\nof least", lambda row, _: _of_least(row.of_least_misses)),
    ("bytes, %\nof least", lambda row, _: _of_least(row.of_least_bytes)),
)
_COUNTS: tuple[tuple[str, Value], ...] = (
    ("misses\nper batch", lambda _, traffic: amount(traffic.unique_misses / traffic.batches)),
    ("MB in\nper batch", lambda _, traffic: amount(traffic.bytes_fetched / traffic.batches / 1e6)),
    ("MB out\nper batch", lambda _, traffic: amount(traffic.bytes_written_back / traffic.batches / 1e6)),
)


def show(simulation: Simulation, console: Console) -> None:
    """Print what was replayed, a line per policy, what could not run, and the legend."""
    for line in _heading(simulation):
        print_line(console, line)
    how = simulation.configuration
    columns = (*_RATES, *(_COUNTS if len(how.cache_ratios) <= DETAILED_SIZES else ()))
    found = {(row.policy, row.cache_ratio): row for row in simulation.rows}
    lines = [
        [policy, *(_cell(found.get((policy, ratio)), value) for _, value in columns for ratio in how.cache_ratios)]
        for policy in how.policies
    ]
    heads = [f"{head}\nat {_percent(ratio)} %" for head, _ in columns for ratio in how.cache_ratios]
    first_bound = [number for number, line in enumerate(lines) if line[0].split("[")[0] in BOUNDS][:1]
    print_table(console, ["policy", *heads], lines, sections=first_bound)
    for policy in how.policies:
        _show_refusals(console, [row for row in simulation.rows if row.policy == policy and row.status != "ok"])
    for note in _notes(simulation):
        print_line(console, note)
    if not simulation.complete:
        print_line(console, "Interrupted: what was done until then.", style="yellow")
    print_line(console, _LEGEND, style="dim")


def _cell(row: SimulatedRow | None, value: Value) -> str:
    return MISSING if row is None or row.traffic is None else value(row, row.traffic)


def _heading(simulation: Simulation) -> list[str]:
    stream, how = simulation.stream, simulation.configuration
    tables = len(stream.tables)
    return [
        f"{stream.name}: {tables} {'table' if tables == 1 else 'tables'}, {stream.rows:,} rows, "
        f"batch {stream.batch_size:,}, {how.optimizer}, dim {how.embedding_dim}",
        f"{how.counted_batches:,} batches counted after {how.warmup_batches:,} of warm-up, of {stream.batches:,}",
        "",
    ]


def _show_refusals(console: Console, rows: Sequence[SimulatedRow]) -> None:
    """Print the sizes at which a policy did not run, with the reason at the largest."""
    if not rows:
        return
    last = rows[-1]
    how, style = ("failed", "red") if last.status == "failed" else ("cannot run", "")
    sizes = ", ".join(_percent(row.cache_ratio) for row in rows)
    print_line(console, f"{last.policy} {how} at {sizes} %: {last.reason}", style=style)


def _notes(simulation: Simulation) -> Iterator[str]:
    """Notes on sizes that a stream of so many batches says little about."""
    for ratio in simulation.configuration.cache_ratios:
        replayed = [row.traffic for row in simulation.rows if row.cache_ratio == ratio and row.traffic is not None]
        most = max((traffic.overflow_batches for traffic in replayed), default=0)
        if most:
            yield f"At {_percent(ratio)} %, {most:,} batches have more distinct rows than there are slots."
    short = [row for row in simulation.rows if row.least and row.least.slots > _FREE_START * row.least.unique_misses]
    if short:
        first, counted = min(row.cache_ratio for row in short), simulation.configuration.counted_batches
        yield (
            f"From {_percent(first)} % on, {counted:,} batches are few: the least starts with the best rows free of "
            "charge, and a cache that starts empty still fills. Count more with --batches or --epoch."
        )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g}"
