"""Loss and AUROC while training, by samples and by the seconds that they take at the system's speed."""

import itertools
import statistics
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from suite.report.figures.entries import Entry, entries
from suite.report.figures.panels import LABEL, SMALL, Panels, wrapped
from suite.report.source import Source
from suite.tables.figure_style import COLOURS, GREY
from suite.tables.settings import sweeps

TITLE = "Quality while training: every sample is scored before it is trained on"
NOTE = (
    "Mean over rounds, each point over the samples since the one before; every system at the smallest cache that it "
    "ran with. Systems that compute alike coincide: thick lines lie below thin ones. Seconds: samples at the system's "
    "throughput; a system that was not timed has none."
)
MEASURES = (("loss", "loss"), ("AUROC", "auroc"))
"""Words, and the field of `QualityPoint`."""
_THICKEST, _THINNEST = 8.0, 1.0
Curve = list[tuple[int, float]]
"""Samples and a mean over rounds."""


def draw(source: Source) -> Figure | None:
    """The figure; None where quality was looked at only after training."""
    listed = [(sweep[0], [one for one in entries(sweep) if _curve(one, "loss")]) for sweep in sweeps(source.groups)]
    shown = [(group, found) for group, found in listed if found]
    if not shown:
        return None
    systems = list(dict.fromkeys(one.row.system for _, found in shown for one in found))
    groups = [group for group, _ in shown]
    panels = Panels(TITLE, NOTE, groups, columns=2 * len(MEASURES), lines=len(shown), panel_in=(2.0, 1.5))
    for number, ((_, found), line) in enumerate(zip(shown, panels.axes, strict=True)):
        for axes, ((words, field), against) in zip(
            line, itertools.product(MEASURES, ("samples", "seconds")), strict=True
        ):
            curves = [(one, _curve(one, field)) for one in found]
            for one, curve in curves:
                _draw(axes, one, curve, systems, by_samples=against == "samples")
            panels.name(axes, number, margin_in=0.5)
            axes.set_ylabel(words, fontsize=LABEL)
            axes.set_xlabel(against, fontsize=LABEL)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
            if against == "samples":
                apart = _apart([curve for one, curve in curves if not one.is_control])
                axes.text(0.97, 0.5, apart, transform=axes.transAxes, ha="right", fontsize=SMALL)
    return panels.close(first=[wrapped(system) for system in systems])


def _apart(curves: Sequence[Curve]) -> str:
    """How far systems are apart at most, at any point; nothing with fewer than two of them."""
    at: dict[int, list[float]] = {}
    for samples, value in itertools.chain(*curves):
        at.setdefault(samples, []).append(value)
    if len(curves) < 2 or not at:
        return ""
    found = max(max(values) - min(values) for values in at.values())
    return f"{len(curves)} systems\nequal" if found == 0 else f"{len(curves)} systems at\nmost {found:.1g} apart"


def _curve(entry: Entry, field: str) -> Curve:
    """A system's quality by samples, where it is known; nothing where a round has no points."""
    rounds = [measurement.quality.points for measurement in entry.row.measurements]
    if not all(rounds):
        return []
    values = [(points[0].samples, [getattr(point, field) for point in points]) for points in zip(*rounds, strict=False)]
    return [(samples, mean) for samples, of_rounds in values if (mean := _mean(of_rounds)) is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _draw(axes: Axes, entry: Entry, curve: Curve, systems: Sequence[str], *, by_samples: bool) -> None:
    speed = 1.0 if by_samples else entry.row.samples_per_s
    if speed is None:
        return
    number = systems.index(entry.row.system)
    control, share = entry.is_control, number / max(1, len(systems) - 1)
    axes.plot(
        [samples / speed for samples, _ in curve],
        [value for _, value in curve],
        label=wrapped(entry.row.system) if by_samples else None,
        color=GREY if control else COLOURS[number % len(COLOURS)],
        linestyle="--" if control else "-",
        linewidth=_THICKEST - (_THICKEST - _THINNEST) * share if by_samples and not control else _THINNEST,
        zorder=2 + share,
    )
