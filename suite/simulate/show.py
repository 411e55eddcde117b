"""A simulation in a terminal, whatever its width, and as a figure: miss rate by cache size, a line per policy."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.console import Console

from suite.simulate.models.registry import BOUNDS
from suite.simulate.results import SimulatedRow, SimulatedTraffic, Simulation
from suite.tables.formatting import BLACK, COLOURS, DASHES, MARKERS, MISSING, amount, look
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


FILE = "miss_rate.svg"
_RANKING = re.compile(r"policy=\w+")
_BOUND_STYLES: dict[str, dict[str, Any]] = {
    "belady": {"color": BLACK, "linewidth": 2.2, "zorder": 4},
    "compulsory": {"color": BLACK, "linewidth": 0.9, "linestyle": ":"},
}


def label(policy: str) -> str:
    """The name of a policy in a figure."""
    return "belady, the optimum" if policy == "belady" else policy


def plot(axes: Axes, simulation: Simulation, styles: Mapping[str, dict[str, Any]]) -> None:
    """Misses over the share of cached rows, both in per cent: a line for each policy that `styles` has one for."""
    for policy, style in styles.items():
        points = sorted(
            (100 * row.slots_asked / simulation.stream.rows, 100 * (1 - row.traffic.hit_rate))
            for row in simulation.rows
            if row.policy == policy and row.traffic is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), label=label(policy), **(_BOUND_STYLES.get(policy) or style))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([100 * ratio for ratio in simulation.configuration.cache_ratios]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _position: f"{share:.3g}"))
    axes.set_ylim(bottom=0)


def draw(simulation: Simulation, folder: Path) -> Path:
    """Write the figure, the same bytes for the same simulation. `folder` exists. Returns the file."""
    with look("simulate"):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        plot(axes, simulation, _styles(simulation.configuration.policies))
        axes.set(xlabel="cached rows, % of all", ylabel="unique miss rate, % of a batch's distinct rows")
        axes.set_title(f"{simulation.stream.name}: misses by cache size")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        path = folder / FILE
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Line styles: variants that differ in `policy=` alone share a colour and have dashes of their own."""
    styles: dict[str, dict[str, Any]] = {}
    colours: dict[str, str] = {}
    dashes: dict[str, Any] = {}
    for number, policy in enumerate(policies):
        ranking = "".join(_RANKING.findall(policy))
        styles[policy] = {
            "color": colours.setdefault(_RANKING.sub("", policy), COLOURS[len(colours) % len(COLOURS)]),
            "linestyle": dashes.setdefault(ranking, DASHES[len(dashes) % len(DASHES)]) if ranking else "-",
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.1,
        }
    return styles
