"""Loss and AUROC while training, by samples and by the seconds that they take at the system's speed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from suite.records.groups import Group
from suite.records.measured import QualityPoint
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
_PANEL_IN, _HEIGHT_IN = 2.0, 1.5
_THICKEST, _THINNEST = 8.0, 1.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A system's quality over time: samples, and a value each by field of `QualityPoint`; None: not known."""

    entry: Entry
    samples: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]

    @property
    def seconds(self) -> tuple[float, ...] | None:
        """Seconds that the samples take; None where the system was not timed."""
        speed = self.entry.row.samples_per_s
        return None if speed is None else tuple(number / speed for number in self.samples)


def curves(source: Source) -> list[tuple[Group, tuple[Curve, ...]]]:
    """The curves of every sweep that has some."""
    found = [
        (sweep[0], tuple(curve for entry in entries(sweep) if (curve := _curve(entry)) is not None))
        for sweep in sweeps(source.groups)
    ]
    return [(group, made) for group, made in found if made]


def draw(source: Source) -> Figure | None:
    """The figure; None where quality was looked at only after training."""
    shown = curves(source)
    if not shown:
        return None
    systems = list(dict.fromkeys(curve.entry.row.system for _, made in shown for curve in made))
    panels = Panels(
        TITLE,
        NOTE,
        [group for group, _ in shown],
        heights_in=[_HEIGHT_IN] * len(shown),
        columns=2 * len(MEASURES),
        panel_in=_PANEL_IN,
    )
    for number, ((_, made), line) in enumerate(zip(shown, panels.axes, strict=True)):
        for axes, ((words, field), against) in zip(line, itertools.product(MEASURES, ("samples", "s")), strict=True):
            for curve in made:
                _draw(axes, curve, field, against, systems)
            panels.name(axes, number, margin_in=0.5)
            axes.set_ylabel(words, fontsize=LABEL)
            axes.set_xlabel("samples" if against == "samples" else "seconds", fontsize=LABEL)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
            axes.tick_params(labelsize=SMALL)
            if against == "samples":
                axes.text(0.97, 0.5, _apart(made, field), transform=axes.transAxes, ha="right", fontsize=SMALL)
    return panels.close(first=[wrapped(system) for system in systems])


def spread(made: Sequence[Curve], field: str) -> float | None:
    """How far systems are apart at most, at any point; controls stand outside. None with fewer than two systems."""
    values = [curve.values[field] for curve in made if not curve.entry.is_control]
    if len(values) < 2:
        return None
    known = [[value for value in point if value is not None] for point in zip(*values, strict=False)]
    return max((max(point) - min(point) for point in known if point), default=None)


def _apart(made: Sequence[Curve], field: str) -> str:
    found = spread(made, field)
    if found is None:
        return ""
    number = sum(not curve.entry.is_control for curve in made)
    return f"{number} systems\nequal" if found == 0 else f"{number} systems at\nmost {found:.1g} apart"


def _curve(entry: Entry) -> Curve | None:
    rounds = [run.measurement.quality.points for run in entry.records if run.measurement is not None]
    if not rounds or not all(rounds):
        return None
    points = list(zip(*rounds, strict=False))
    return Curve(
        entry=entry,
        samples=tuple(of_rounds[0].samples for of_rounds in points),
        values={field: tuple(_mean(of_rounds, field) for of_rounds in points) for _, field in MEASURES},
    )


def _mean(points: Sequence[QualityPoint], field: str) -> float | None:
    known = [value for point in points if (value := getattr(point, field)) is not None]
    return statistics.fmean(known) if known else None


def _draw(axes: Axes, curve: Curve, field: str, against: str, systems: Sequence[str]) -> None:
    coincide = against == "samples"
    at = curve.samples if coincide else curve.seconds
    if at is None:
        return
    number = systems.index(curve.entry.row.system)
    control, share = curve.entry.is_control, number / max(1, len(systems) - 1)
    known = [(x, y) for x, y in zip(at, curve.values[field], strict=True) if y is not None]
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        label=wrapped(curve.entry.row.system) if coincide else None,
        color=GREY if control else COLOURS[number % len(COLOURS)],
        linestyle="--" if control else "-",
        linewidth=_THICKEST - (_THICKEST - _THINNEST) * share if coincide and not control else _THINNEST,
        zorder=2 + share,
    )
