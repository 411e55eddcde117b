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
"""Up to so many cache sizes have a table each; more become columns."""
_FREE_START = 0.25
"""Slots relative to the least misses from which on it matters what a cache starts with."""
_LEGEND = (
    "Hit rate: 1 - unique misses / unique ids, before anything is fetched. The least: what Belady's rule misses and "
    "moves, batch by batch, with as many slots over the same batches, past the cache where the policy may. MB: 1e6 "
    "bytes per batch, optimizer state included; the column behind them is both ways."
)

Value = Callable[[SimulatedRow, SimulatedTraffic], str]


def _of_least(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


_COLUMNS: tuple[tuple[str, Value], ...] = (
    ("hit\nrate %", lambda _, traffic: f"{100 * traffic.hit_rate:.2f}"),
    ("misses\nper batch", lambda _, traffic: amount(traffic.unique_misses / traffic.batches)),
    ("% of\nleast", lambda row, _: _of_least(row.of_least_misses)),
    ("MB\nin", lambda _, traffic: amount(traffic.bytes_fetched / traffic.batches / 1e6)),
    ("MB\nout", lambda _, traffic: amount(traffic.bytes_written_back / traffic.batches / 1e6)),
    ("% of\nleast", lambda row, _: _of_least(row.of_least_bytes)),
)
_BY_SIZE = {0: "Hit rate in %", 2: "Misses in % of the least", 5: "Bytes moved in % of the least"}
"""Columns that have a table of their own where there are many sizes."""


def _cell(row: SimulatedRow, value: Value) -> str:
    return MISSING if row.traffic is None else value(row, row.traffic)


def show(simulation: Simulation, console: Console) -> None:
    """Print what was replayed, the rows, what could not run, and the legend."""
    for line in _heading(simulation):
        print_line(console, line)
    ratios = simulation.configuration.cache_ratios
    if len(ratios) <= DETAILED_SIZES:
        for ratio in ratios:
            _show_size(console, ratio, [row for row in simulation.rows if row.cache_ratio == ratio])
    else:
        for column, title in _BY_SIZE.items():
            _show_sizes(console, title, simulation, _COLUMNS[column][1])
    for policy in simulation.configuration.policies:
        _show_refusals(console, [row for row in simulation.rows if row.policy == policy and row.status != "ok"])
    for note in _notes(simulation):
        print_line(console, note)
    if not simulation.complete:
        print_line(console, "Interrupted: what was done until then.", style="yellow")
    print_line(console, _LEGEND, style="dim")


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


def _show_size(console: Console, ratio: float, rows: Sequence[SimulatedRow]) -> None:
    if not rows:
        return
    print_line(console, f"Cache of {_percent(ratio)} % of the rows: {rows[0].slots_asked:,} slots", style="bold")
    lines = [[row.policy, *(_cell(row, value) for _, value in _COLUMNS)] for row in rows]
    print_table(console, ["policy", *(header for header, _ in _COLUMNS)], lines, sections=_first_bound(lines))
    for row in rows:
        if row.traffic is not None and row.traffic.details:
            counts = ", ".join(
                f"{name.replace('_', ' ')} {amount(count / row.traffic.batches)}"
                for name, count in row.traffic.details.items()
            )
            print_line(console, f"{row.policy}: {counts}, per batch")
    _show_tables(console, rows)


def _show_tables(console: Console, rows: Sequence[SimulatedRow]) -> None:
    """Misses by table, a column per policy."""
    counted = [(row, row.traffic, row.traffic.per_table) for row in rows if row.traffic and row.traffic.per_table]
    if not counted:
        return
    print_line(console, "Unique misses per batch by table", style="bold")
    _, first, of_first = counted[0]
    header = ["table", "distinct", *(row.policy.replace("[", "\n [").replace(",", ",\n  ") for row, _, _ in counted)]
    lines = [
        [
            name,
            amount(of_first[name][0] / first.batches),
            *(amount(per_table[name][1] / traffic.batches) for _, traffic, per_table in counted),
        ]
        for name in of_first
    ]
    print_table(console, header, lines)


def _show_sizes(console: Console, title: str, simulation: Simulation, value: Value) -> None:
    print_line(console, f"{title}, by cached share of the rows in %", style="bold")
    found = {(row.policy, row.cache_ratio): _cell(row, value) for row in simulation.rows}
    ratios = simulation.configuration.cache_ratios
    lines = [
        [policy, *(found.get((policy, ratio), MISSING) for ratio in ratios)]
        for policy in simulation.configuration.policies
    ]
    print_table(console, ["policy", *(_percent(ratio) for ratio in ratios)], lines, sections=_first_bound(lines))


def _first_bound(lines: Sequence[Sequence[str]]) -> list[int]:
    """The first line of a bound, above which a rule is drawn."""
    return [number for number, line in enumerate(lines) if line[0].split("[")[0] in BOUNDS][:1]


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
