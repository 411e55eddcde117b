"""Panels side by side under one title, over one legend; what stands around them is cut to size when it is saved."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from suite.tables.formatting import COLOURS, DASHES, MARKERS
from suite.tables.statistics import Estimate

TITLE, LABEL, SMALL = 9.0, 7.0, 6.5
"""Sizes of type, in points."""
NAME_LETTERS = 40
"""In a line of a system's name in a legend."""
COLUMNS = 3
"""Panels side by side, at most."""
_MOST_TICKS = 4
_STEPS = (
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    (1.0, 2.0, 3.0, 5.0, 7.0),
    (1.0, 2.0, 5.0),
    (1.0, 3.0),
    (1.0,),
)
"""Steps of a decade, finest first."""


def _letters_in(width_in: float, size: float) -> int:
    """Letters of a size in points that fit a width: of DejaVu Sans, whose mean width is rounded up."""
    return int(width_in / (size * 0.62 / 72))


class Panels:
    """A figure of panels in lines: title above, legend and how to read it below.

    Args:
        title: Title of the figure.
        note: Legend's text on reading it.
        count: Number of panels.
        columns: Panels in a line.
        panel_in: Width and height of a panel with its title and labels.
    """

    def __init__(self, title: str, note: str, count: int, *, columns: int, panel_in: tuple[float, float]) -> None:
        lines = math.ceil(count / columns)
        self._width_in = max(6.4, panel_in[0] * columns)
        self._panel_letters = _letters_in(panel_in[0] - 0.7, LABEL)
        self._note = textwrap.fill(note, _letters_in(self._width_in - 0.2, SMALL))
        self.figure = Figure(figsize=(self._width_in, panel_in[1] * lines), layout="constrained")
        self.figure.suptitle(textwrap.fill(title, _letters_in(self._width_in - 0.2, TITLE)), fontsize=TITLE)
        self._lines: list[list[Axes]] = self.figure.subplots(lines, columns, squeeze=False).tolist()
        self.flat = [axes for line in self._lines for axes in line]
        for axes in self.flat:
            axes.tick_params(labelsize=SMALL)

    def name(self, axes: Axes, *lines: str) -> None:
        """Give a panel its title."""
        axes.set_title("\n".join(textwrap.fill(text, self._panel_letters) for text in lines), fontsize=LABEL + 0.5)

    def label(self, x: str = "", y: str = "") -> None:
        """Label all panels below, and the first of every line beside."""
        for axes in self.flat if x else ():
            axes.set_xlabel(x, fontsize=SMALL)
        for line in self._lines:
            line[0].set_ylabel(y, fontsize=LABEL)

    def close(self) -> Figure:
        """Put legend and note below the figure's edge, and hide empty panels. Returns the figure."""
        handles: dict[str, Artist] = {}
        for axes in self.flat:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            axes.set_visible(axes.has_data())
        longest = max(len(line) for label in handles for line in label.splitlines())
        self.figure.legend(
            [*handles.values()],
            [*handles],
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncols=max(1, min(len(handles), _letters_in(self._width_in, LABEL) // (longest + 10))),
            frameon=False,
            fontsize=LABEL,
            title=self._note,
            title_fontsize=SMALL,
            columnspacing=1.2,
            handlelength=2.4,
        )
        return self.figure


def series(axes: Axes, number: int, label: str, points: Iterable[Sequence[float]], **more: Any) -> None:  # noqa: ANN401
    """A line with bars in the colour, mark and dashes of that number.

    Points have x, y, and how far the bar goes down and up; not a number draws none. `more` goes to matplotlib.
    """
    at, values, down, up = zip(*points, strict=True)
    axes.errorbar(
        at, values, yerr=(down, up), label=textwrap.fill(label, NAME_LETTERS),
        color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
        linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
        markersize=4.5, linewidth=1.1, elinewidth=0.9, capsize=2, zorder=3, **more,
    )  # fmt: skip


def bar(found: Estimate | None) -> tuple[float, float]:
    """How far an interval goes down and up; not a number where there is none, which draws nothing."""
    if found is None or found.low is None or found.high is None:
        return math.nan, math.nan
    return found.value - found.low, found.high - found.value


def ticks_at(axis: Axis, ticks: Sequence[float], words: Callable[[float, int], str]) -> None:
    """Have these ticks and no others, as a logarithmic axis would not."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(words))


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: as many as have room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [
        [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]
        for steps in _STEPS
    ]
    fitting = [ticks for ticks in choices if len(ticks) <= _MOST_TICKS]
    return max(fitting, key=len) if fitting else choices[-1][:: math.ceil(len(choices[-1]) / _MOST_TICKS)]
