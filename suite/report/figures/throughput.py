"""Samples per second by device memory: every contender, the best within each size, and all tables on the device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

from suite.records.groups import is_baseline
from suite.records.status import Status
from suite.report.contests import Contest, contests, device_bytes
from suite.report.figures.families import Titles
from suite.report.figures.panels import COLUMNS, Panels, panel_title
from suite.report.figures.words import LABEL, SMALL, bytes_words, letters_in, wrapped
from suite.report.source import Source
from suite.tables.figure_style import BLACK, COLOURS, GREY, MARKERS
from suite.tables.statistics import Estimate, mean_of_rounds, samples_per_s_by_round

TITLE = "Throughput by device memory"
NOTE = "Whiskers: 95 % interval over rounds, Student's t on logarithms; a point of a single round has none."
_PANEL_IN, _HEIGHT_IN = 3.3, 2.3
_LEGEND_LETTERS = 40
_MOST_TICKS = 4
_STEPS = (
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    (1.0, 2.0, 3.0, 5.0, 7.0),
    (1.0, 2.0, 5.0),
    (1.0, 3.0),
    (1.0,),
)
"""Of a decade, finest first."""


@dataclass(frozen=True, kw_only=True)
class _Baseline:
    """All tables on the device, or in RAM on a CPU, whatever the budget."""

    system: str
    samples_per_s: float
    size: int | None
    on_cpu: bool

    @property
    def words(self) -> str:
        """What it is and what it needs."""
        where = "all in RAM" if self.on_cpu else "all on the device"
        size = "size n/a" if self.size is None else bytes_words(self.size)
        return f"{self.system}:\n{where},\n{size}"


def draw(source: Source) -> Figure | None:
    """The figure; None where no contest was held."""
    held = contests(source.groups)
    if not held:
        return None
    columns = min(COLUMNS, len(held))
    lines = math.ceil(len(held) / columns)
    systems = sorted({contender.system for contest in held for contender in contest.contenders})
    titles = Titles.of([contest.group for contest in held])
    panels = Panels(
        TITLE,
        titles.shared,
        NOTE,
        heights_in=[_HEIGHT_IN] * lines,
        columns=columns,
        width_in=max(6.4, _PANEL_IN * columns),
    )
    letters = letters_in(_PANEL_IN - 0.9, LABEL)
    for contest, own, axes in zip(held, titles.own, itertools.chain(*panels.axes), strict=False):
        _panel(axes, contest, systems)
        panel_title(axes, contest.group.title, own, letters=letters)
        bases = "; ".join(dict.fromkeys(contender.basis for contender in contest.contenders))
        axes.set_xlabel(wrapped(f"device bytes, log scale: {bases}", letters), fontsize=SMALL)
    for line in panels.axes:
        line[0].set_ylabel("samples/s", fontsize=LABEL)
    return panels.close(first=[wrapped(system, _LEGEND_LETTERS) for system in systems])


def _panel(axes: Axes, contest: Contest, systems: Sequence[str]) -> None:
    for number, system in enumerate(systems):
        found = [contender for contender in contest.contenders if contender.system == system]
        if not found:
            continue
        means = [mean_of_rounds(contender.speeds.values()) for contender in found]
        low, high = zip(*map(_whisker, means), strict=True)
        axes.errorbar(
            [contender.device_bytes for contender in found],
            [one.value for one in means],
            yerr=(low, high),
            label=wrapped(system, _LEGEND_LETTERS),
            linestyle="",
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            capsize=2,
            elinewidth=0.9,
            zorder=3,
        )
    sizes = [contender.device_bytes for contender in contest.contenders]
    low_end, high_end = min(sizes) / 1.4, max(sizes) * 1.4
    best = list(itertools.accumulate((contender.samples_per_s for contender in contest.contenders), max))
    axes.step(
        [*sizes, high_end], [*best, best[-1]], where="post", color=BLACK, linewidth=1.1, label="best within the bytes"
    )
    baseline = _baseline(contest)
    if baseline is not None:
        axes.axhline(baseline.samples_per_s, color=GREY, linestyle="--", linewidth=1.1, label="all-on-device baseline")
        axes.text(
            1.02,
            baseline.samples_per_s,
            wrapped_lines(baseline.words),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL - 0.5,
        )
    axes.set_xscale("log")
    axes.set_xlim(low_end, high_end)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(FixedLocator(byte_ticks(low_end, high_end)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(bytes_words))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(labelsize=SMALL)


def byte_ticks(low: float, high: float) -> list[float]:
    """Round sizes between two: as many as have room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [
        [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]
        for steps in _STEPS
    ]
    fitting = [ticks for ticks in choices if len(ticks) <= _MOST_TICKS]
    return max(fitting, key=len) if fitting else choices[-1][:: math.ceil(len(choices[-1]) / _MOST_TICKS)]


def wrapped_lines(text: str) -> str:
    """Each line of a text within the margin right of a panel."""
    return "\n".join(wrapped(line, 14) for line in text.splitlines())


def _whisker(mean: Estimate) -> tuple[float, float]:
    """Lengths below and above the mean; not a number where there is no interval, which draws nothing."""
    if mean.low is None or mean.high is None:
        return math.nan, math.nan
    return mean.value - mean.low, mean.high - mean.value


def _baseline(contest: Contest) -> _Baseline | None:
    """The fastest baseline of the contest's family whose rounds are all ok and verified."""
    found = []
    for group in contest.groups:
        for system, runs in group.rounds_by_system.items():
            fit = all(run.status is Status.OK and run.verification and run.verification.passed for run in runs)
            speeds = samples_per_s_by_round(runs)
            if not (is_baseline(system) and fit and speeds):
                continue
            sizes = [device_bytes(run.measurement, on_cpu=group.on_cpu) for run in runs if run.measurement]
            known = [size for size, _ in filter(None, sizes)]
            found.append(
                _Baseline(
                    system=system,
                    samples_per_s=mean_of_rounds(speeds.values()).value,
                    size=max(known) if known else None,
                    on_cpu=group.on_cpu,
                )
            )
    return max(found, key=lambda baseline: (baseline.samples_per_s, baseline.system), default=None)
