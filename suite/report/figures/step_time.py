"""Time of a step: what the cost model said of its parts before it ran, beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.records.record import Measurement
from suite.report.figures.entries import beside, entry_panels, stack
from suite.report.figures.families import Entry, Family
from suite.report.figures.spread import spread
from suite.report.source import Source
from suite.tables.figure_style import BLACK, FILLS
from suite.tables.quantities import amount

TITLE = "Time of a step: parts modelled before the run, beside the step measured"
NOTE = (
    "Upper bar: exposed time by part, then what goes on beside training, modelled from a calibration of this machine. "
    "Lower bar: measured, geometric mean over rounds, whiskers: its 95 % interval, Student's t on logarithms (none of "
    "a single round); a whisker that leaves the panel reaches beyond twice the longest bar."
)
HIDDEN = "modelled: hidden beside training"
MEASURED, WAITING = "measured: step", "measured: waiting for batches"
_TERMS = ("dense", "calls", "launches", "lookup", "update", "planning", "moving")
_HALF = 0.36
_ROOM = 2.0
"""Times the longest bar that a panel shows at most."""


def draw(source: Source) -> Figure | None:
    """The figure; None where nothing was measured."""
    names = {
        name
        for group in source.groups
        for record in group.records
        if record.prediction is not None
        for name in record.prediction.terms_s
    }
    terms = [name for name in _TERMS if name in names] + sorted(names.difference(_TERMS))

    def fill(axes: Axes, family: Family, places: Sequence[float]) -> None:
        _panel(axes, family, places, terms)

    return entry_panels(
        source,
        title=TITLE,
        note=NOTE,
        axis="ms per step",
        shows=lambda entry: bool(entry.records),
        fill=fill,
    )


def _panel(axes: Axes, family: Family, places: Sequence[float], terms: Sequence[str]) -> None:
    parts = [_parts(entry) for entry in family.entries]
    above, ends = [place - _HALF / 2 for place in places], [0.0] * len(parts)
    for number, name in enumerate(terms):
        widths = [1e3 * one.get(name, 0.0) for one in parts]
        fill = FILLS[number % len(FILLS)]
        stack(axes, above, ends, widths, height=_HALF, label=f"modelled: {name}", fill=fill)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    hidden = [1e3 * _hidden_s(entry) for entry in family.entries]
    stack(axes, above, ends, hidden, height=_HALF, label=HIDDEN, fill=("white", "...."))
    measured = [
        (place, [run.measurement for run in entry.records if run.measurement is not None])
        for entry, place in zip(family.entries, places, strict=True)
        if entry.records
    ]
    below = [place + _HALF / 2 for place, _ in measured]
    steps = [spread(1e3 / one.timing.steps_per_s for one in rounds) for _, rounds in measured]
    waits = [_wait_share(rounds) * step.mean for (_, rounds), step in zip(measured, steps, strict=True)]
    busy = [step.mean - wait for step, wait in zip(steps, waits, strict=True)]
    stack(axes, below, [0.0] * len(busy), busy, height=_HALF, label=MEASURED, fill=("#D9D9D9", ""))
    stack(axes, below, busy, waits, height=_HALF, label=WAITING, fill=("white", "//////"))
    axes.errorbar(
        [step.mean for step in steps],
        below,
        xerr=tuple(zip(*(step.whisker for step in steps), strict=True)),
        linestyle="", color=BLACK, ecolor=BLACK, capsize=2, elinewidth=0.9,
    )  # fmt: skip
    found = dict(zip([place for place, _ in measured], steps, strict=True))
    for entry, place in zip(family.entries, places, strict=True):
        beside(axes, place, _words(entry, found[place].mean) if place in found else f"n/a: {entry.row.status.value}")
    # a few noisy rounds have an interval beside which no bar is seen
    longest = max([*ends, *(step.mean for step in steps)], default=0.0)
    axes.set_xlim(0, min(axes.get_xlim()[1], _ROOM * longest) if longest else None)


def _words(entry: Entry, measured_ms: float) -> str:
    error = entry.row.prediction_error
    return f"{amount(measured_ms)} ms" + ("" if error is None else f" (model {100 * error:+.0f} %)")


def _parts(entry: Entry) -> dict[str, float]:
    """Mean over rounds of every modelled part, in seconds; empty where nothing was predicted."""
    said = [run.prediction.terms_s for run in entry.records if run.prediction is not None]
    names = dict.fromkeys(name for terms in said for name in terms)
    return {name: statistics.fmean(terms.get(name, 0.0) for terms in said) for name in names}


def _hidden_s(entry: Entry) -> float:
    """Mean over rounds of what is modelled to go on beside training: copies and planning that nothing waits for."""
    said = [run.prediction.hidden_s for run in entry.records if run.prediction is not None]
    return statistics.fmean(sum(terms.values()) for terms in said) if said else 0.0


def _wait_share(rounds: Sequence[Measurement]) -> float:
    """Of the timed windows, over the rounds that say; 0 where none does."""
    shares = [share for one in rounds if (share := one.timing.data_wait_share) is not None]
    return statistics.fmean(shares) if shares else 0.0
