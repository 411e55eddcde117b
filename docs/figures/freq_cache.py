"""Draws `freq_cache.svg`: what policy and look-ahead save, replayed on the cache's own planner.

    python docs/figures/freq_cache.py

Every point is one replay of the same synthetic Criteo Kaggle stream, shrunk to about a million rows. Misses are counted
over the second half of the trace. Belady's bound is that of the simulator: it starts from the best of the rows most
frequent in the dataset.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from suite.simulate.models.belady import BeladyModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.trace import WorkloadTrace
from systems.freq_cache import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from workloads.streams.synthetic import SyntheticWorkload

POLICIES = ("static", "lfu", "lru")
LOOK_AHEADS = (0, 16, 64)
RATIOS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
OUTPUT = Path(__file__).with_name("freq_cache.svg")

# Okabe and Ito's colours, which stay apart for the colour-blind; markers and dashes keep them apart without colour.
_STYLES = {
    "lru": {"color": "#D55E00", "marker": "s", "linestyle": "-", "label": "LRU"},
    "lfu": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "LFU"},
    "static": {"color": "#009E73", "marker": "^", "linestyle": "-", "label": "static frequency"},
}
_BOUND = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.2, "label": "Belady's bound"}


@dataclass(frozen=True)
class Measured:
    """Unique misses as a share of the distinct rows of the counted batches.

    Attributes:
        ratios: Cache ratios.
        misses: By policy and look-ahead, in the order of `ratios`.
        bound: Belady's, in the order of `ratios`.
        rows: Rows of all tables.
        unique_ids: Distinct rows per batch, on average.
    """

    ratios: tuple[float, ...]
    misses: Mapping[tuple[str, int], tuple[float, ...]]
    bound: tuple[float, ...]
    rows: int
    unique_ids: float


@dataclass(frozen=True)
class _Trace:
    batches: Sequence[Ids]
    rows: int
    frequencies: Sequence[np.ndarray]
    simulated: WorkloadTrace


def measure(
    *, max_rows: int = 1_000_000, batch_size: int = 256, batches: int = 1_200, ratios: Sequence[float] = RATIOS
) -> Measured:
    """Replay the stream for every ratio, policy and look-ahead. The defaults take some 20 s on one core."""
    trace = _trace(max_rows=max_rows, batch_size=batch_size, batches=batches)
    make: dict[str, Callable[[], Policy]] = {
        "static": lambda: StaticFrequency(trace.frequencies),
        "lfu": lambda: LFU(trace.rows),
        "lru": LRU,
    }
    misses: dict[tuple[str, int], list[float]] = {(name, ahead): [] for name in POLICIES for ahead in LOOK_AHEADS}
    bound, unique = [], 0.0
    for ratio in ratios:
        slots = int(trace.rows * ratio)
        span = Span(counted_from=batches // 2, stop=batches)
        least = replay(
            BeladyModel(Setting(trace=trace.simulated, span=span, slots=slots), {"bypass": "off", "warm": "frequent"})
        )
        bound.append(least.unique_misses / least.unique_ids)
        unique = least.unique_ids / least.batches
        for (name, ahead), shares in misses.items():
            shares.append(_replay(trace, slots=slots, policy=make[name](), look_ahead=ahead))
    return Measured(
        ratios=tuple(ratios),
        misses={key: tuple(shares) for key, shares in misses.items()},
        bound=tuple(bound),
        rows=trace.rows,
        unique_ids=unique,
    )


def draw(measured: Measured, path: Path) -> None:
    """Write the figure, the same bytes for the same measurements; the suffix of `path` says in which format."""
    settings = {"svg.hashsalt": "freq_cache", "font.size": 8, "font.family": "DejaVu Sans", "axes.linewidth": 0.6}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        axes = figure.subplots(2, len(LOOK_AHEADS), sharex=True, sharey="row", squeeze=False)
        for column, ahead in enumerate(LOOK_AHEADS):
            _draw_column(axes[0, column], axes[1, column], measured, ahead)
        axes[0, 0].set_ylabel("unique misses,\n% of a batch's distinct rows")
        axes[1, 0].set_ylabel("unique misses,\nBelady's bound = 1")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, handlelength=3)
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=200)


def _trace(*, max_rows: int, batch_size: int, batches: int) -> _Trace:
    workload = SyntheticWorkload.create("criteo_kaggle", batch_size=batch_size, seed=0, max_rows=max_rows)
    sizes = np.array([rows for _, rows in workload.tables], np.int64)
    starts = sizes.cumsum() - sizes
    ends = np.arange(1, sizes.size + 1, dtype=np.int64) * batch_size
    return _Trace(
        batches=[Ids(workload.batch(i).features.values().numpy(), ends, starts) for i in range(batches)],
        rows=int(sizes.sum()),
        frequencies=[counts.numpy() for counts in workload.frequencies().values()],
        simulated=WorkloadTrace(workload),
    )


def _replay(trace: _Trace, *, slots: int, policy: Policy, look_ahead: int) -> float:
    """Misses per distinct row over the second half of the trace."""
    planner = Planner(rows=trace.rows, slots=slots, policy=policy, batch_ids=trace.batches[0].values.size)
    planner.warm_up()
    coming = iter(trace.batches)
    misses = unique = 0
    count = len(trace.batches)
    for at in range(count):
        while planner.announced <= look_ahead and (ids := next(coming, None)) is not None:
            planner.announce(planner.distinct(ids), changes=True)
        plan = planner.plan()
        if plan.overflow:
            raise ValueError(
                f"a batch of {plan.unique_ids:,} distinct rows exceeds {slots:,} slots: give a larger ratio"
            )
        if at >= count // 2:
            misses += plan.unique_misses
            unique += plan.unique_ids
    return misses / unique


def _draw_column(absolute: Axes, relative: Axes, measured: Measured, ahead: int) -> None:
    percent = [100 * ratio for ratio in measured.ratios]
    bound = np.array(measured.bound)
    for name, style in _STYLES.items():
        shares = np.array(measured.misses[name, ahead])
        look = {**style, "markersize": 4, "linewidth": 1.2, "markeredgecolor": "white", "markeredgewidth": 0.5}
        absolute.plot(percent, 100 * shares, **look)
        relative.plot(percent, shares / bound, **look)
    absolute.plot(percent, 100 * bound, **_BOUND)
    relative.axhline(1, **_BOUND)
    absolute.set_title("no look-ahead" if ahead == 0 else f"{ahead} batches of look-ahead", fontsize=8)
    absolute.set_yscale("log")
    absolute.set_xscale("log")
    absolute.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    absolute.yaxis.set_major_locator(FixedLocator([2, 5, 10, 20, 50, 100]))
    relative.set_ylim(bottom=0.95)
    relative.set_xticks(percent, [f"{value:g}" for value in percent])
    relative.set_xlabel("cache ratio, % of all rows")
    for axis in (absolute, relative):
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_locator(NullLocator())
        axis.grid(color="0.88", linewidth=0.5)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUTPUT, help="default: beside this file")
    draw(measure(), parser.parse_args().out)


if __name__ == "__main__":
    main()
