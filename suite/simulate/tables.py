"""A simulation in a terminal, whatever its width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.simulate.models.registry import MODELS
from suite.simulate.results import Row, Simulation
from suite.tables.quantities import MISSING, amount

DETAILED_SIZES = 3
"""Up to so many cache sizes have a table each; more become columns."""
_LEAST_TIMED_S = 1.0
_FREE_START = 0.25
"""Slots relative to the least misses from which on it matters what a cache starts with."""
_BOUNDS = tuple(MODELS)[-3:]
_LEGEND = (
    "Hit rate: 1 - unique misses / unique ids, before anything is fetched. The least: what Belady's rule misses and "
    "moves, batch by batch, with as many slots over the same batches, past the cache where the policy may. MB: 1e6 "
    "bytes per batch, optimizer state included; the column behind them is both ways."
)


def show(simulation: Simulation, console: Console) -> None:
    """Print what was replayed, the rows, what could not run, and the legend."""
    for line in _heading(simulation):
        _line(console, line)
    ratios = simulation.configuration.cache_ratios
    if len(ratios) <= DETAILED_SIZES:
        for ratio in ratios:
            _show_size(console, ratio, [row for row in simulation.rows if row.cache_ratio == ratio])
    else:
        for title, value in _BY_SIZE.items():
            _show_sizes(console, title, simulation, value)
    for policy in simulation.configuration.policies:
        _show_refusals(console, [row for row in simulation.rows if row.policy == policy and row.status != "ok"])
    for note in _notes(simulation):
        _line(console, note)
    if not simulation.complete:
        _line(console, "Interrupted: what was done until then.", style="yellow")
    _line(console, _LEGEND, style="dim")


def _heading(simulation: Simulation) -> list[str]:
    stream, how = simulation.stream, simulation.configuration
    tables = len(stream.tables)
    return [
        f"{stream.name}: {tables} {'table' if tables == 1 else 'tables'}, {stream.rows:,} rows, "
        f"batch {stream.batch_size:,}, {how.optimizer}, dim {how.embedding_dim}",
        f"{how.counted_batches:,} batches counted after {how.warmup_batches:,} of warm-up, of {stream.batches:,}",
        "",
    ]


def _show_refusals(console: Console, rows: Sequence[Row]) -> None:
    """Where a policy did not run, and why not at the largest such size."""
    if not rows:
        return
    last = rows[-1]
    how, style = ("failed", "red") if last.status == "failed" else ("cannot run", "")
    sizes = ", ".join(_percent(row.cache_ratio) for row in rows)
    _line(console, f"{last.policy} {how} at {sizes} %: {last.reason}", style=style)


def _notes(simulation: Simulation) -> Iterator[str]:
    """What to know of sizes that a stream of so many batches says little about."""
    for ratio in simulation.configuration.cache_ratios:
        most = max((_overflow(row) for row in simulation.rows if row.cache_ratio == ratio), default=0)
        if most:
            yield f"At {_percent(ratio)} %, {most:,} batches have more distinct rows than there are slots."
    short = [row for row in simulation.rows if row.least and row.least.slots > _FREE_START * row.least.unique_misses]
    if short:
        first, counted = min(row.cache_ratio for row in short), simulation.configuration.counted_batches
        yield (
            f"From {_percent(first)} % on, {counted:,} batches are few: the least starts with the best rows free of "
            "charge, and a cache that starts empty still fills. Count more with --batches or --epoch."
        )


def _show_size(console: Console, ratio: float, rows: Sequence[Row]) -> None:
    if not rows:
        return
    _line(console, f"Cache of {_percent(ratio)} % of the rows: {rows[0].slots_asked:,} slots", style="bold")
    header = ["policy", "hit\nrate %", "misses\nper batch", "% of\nleast", "MB\nin", "MB\nout", "% of\nleast"]
    lines = [
        [
            row.policy,
            _hit_rate(row),
            _per_batch(row, lambda traffic: traffic.unique_misses),
            _of_least(row.of_least_misses),
            _per_batch(row, lambda traffic: traffic.bytes_fetched / 1e6),
            _per_batch(row, lambda traffic: traffic.bytes_written_back / 1e6),
            _of_least(row.of_least_bytes),
            _speed(row),
        ]
        for row in rows
    ]
    _print(console, [*header, "M ids/s\nreplayed"], lines)
    for row in rows:
        if row.traffic is not None and row.traffic.details:
            counts = ", ".join(
                f"{name.replace('_', ' ')} {amount(count / row.traffic.batches)}"
                for name, count in row.traffic.details.items()
            )
            _line(console, f"{row.policy}: {counts}, per batch")
    _show_tables(console, rows)


def _show_tables(console: Console, rows: Sequence[Row]) -> None:
    """Misses by table, a column per policy."""
    counted = [(row, row.traffic, row.traffic.per_table) for row in rows if row.traffic and row.traffic.per_table]
    if not counted:
        return
    _line(console, "Unique misses per batch by table", style="bold")
    _, first, of_first = counted[0]
    header = ["table", "distinct", *(_folded(row.policy) for row, _, _ in counted)]
    lines = [
        [
            name,
            amount(of_first[name][0] / first.batches),
            *(amount(per_table[name][1] / traffic.batches) for _, traffic, per_table in counted),
        ]
        for name in of_first
    ]
    _print(console, header, lines)


def _show_sizes(console: Console, title: str, simulation: Simulation, value: Callable[[Row], str]) -> None:
    _line(console, f"{title}, by cached share of the rows in %", style="bold")
    found = {(row.policy, row.cache_ratio): value(row) for row in simulation.rows}
    ratios = simulation.configuration.cache_ratios
    lines = [
        [policy, *(found.get((policy, ratio), MISSING) for ratio in ratios)]
        for policy in simulation.configuration.policies
    ]
    _print(console, ["policy", *(_percent(ratio) for ratio in ratios)], lines)


def _speed(row: Row) -> str:
    """In millions of ids; of a short replay it says more of the compiler."""
    if row.ids_per_s is None or row.replay_s is None or row.replay_s < _LEAST_TIMED_S:
        return MISSING
    return amount(row.ids_per_s / 1e6)


def _overflow(row: Row) -> int:
    return 0 if row.traffic is None else row.traffic.overflow_batches


def _hit_rate(row: Row) -> str:
    return MISSING if row.traffic is None else f"{100 * row.traffic.hit_rate:.2f}"


def _of_least(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def _per_batch(row: Row, value: Callable[..., float]) -> str:
    return MISSING if row.traffic is None else amount(value(row.traffic) / row.traffic.batches)


_BY_SIZE: dict[str, Callable[[Row], str]] = {
    "Hit rate in %": _hit_rate,
    "Misses in % of the least": lambda row: _of_least(row.of_least_misses),
    "Bytes moved in % of the least": lambda row: _of_least(row.of_least_bytes),
}


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g}"


def _print(console: Console, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """One table, or several that repeat the first column, none wider than the terminal."""
    gap = 2
    widths = _widths([header, *lines])
    if sum(widths) + gap * (len(widths) - 1) > console.width:
        lines = [[_folded(first), *rest] for first, *rest in lines]
        widths, gap = _widths([header, *lines]), 1
    for part in _parts(widths, width=console.width, gap=gap):
        # The box draws a blank between columns; the padding is the rest of the gap.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False)
        for index in part:
            first = index == 0
            table.add_column(Text(header[index]), justify="left" if first else "right", no_wrap=not first)
        for line in lines:
            if _begins_bounds(line[0], lines):
                table.add_section()
            table.add_row(*(Text(line[index]) for index in part))
        console.print(table, highlight=False)
        console.line()


def _begins_bounds(label: str, lines: Sequence[Sequence[str]]) -> bool:
    bounds = [line[0] for line in lines if line[0].split("[")[0].strip() in _BOUNDS]
    return bool(bounds) and label == bounds[0]


def _folded(name: str) -> str:
    """A policy's name with its variant below it."""
    return name.replace("[", "\n [").replace(",", ",\n  ")


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)]


def _parts(widths: Sequence[int], *, width: int, gap: int) -> list[list[int]]:
    """Column indices by table: a new one, which repeats column 0, wherever the width runs out."""
    parts: list[list[int]] = [[0]]
    used = widths[0]
    for index in range(1, len(widths)):
        if len(parts[-1]) > 1 and used + gap + widths[index] > width:
            parts.append([0])
            used = widths[0]
        parts[-1].append(index)
        used += gap + widths[index]
    return parts


def _line(console: Console, text: str, *, style: str = "") -> None:
    # Text, not a string: names such as `freq_cache[policy=lfu]` would be read as markup.
    console.print(Text(text, style=style), soft_wrap=False, highlight=False)
