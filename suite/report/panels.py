"""Panels side by side under one title, over one legend, in a figure that is as large as they need."""

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, NullLocator

from suite.records.groups import Group
from suite.tables.formatting import COLOURS, DASHES, MARKERS
from suite.tables.settings import headings

TITLE, LABEL, SMALL = 9.0, 7.0, 6.5
"""Sizes of type, in points."""
LETTER_IN = 0.62 / 72
"""Mean width of a letter of one point: of DejaVu Sans, rounded up, so that wrapped lines fit."""
NAME_LETTERS = 32
"""In a line of a system's name beside a panel."""


def wrapped(text: str, letters: int = NAME_LETTERS) -> str:
    """A system's name or a sentence in lines of so many letters; names break behind brackets and commas first."""
    pieces = [
        part
        for piece in re.findall(r"[^\s,\[]*[\s,\[]*", text)
        for part in ([piece] if len(piece.rstrip()) <= letters else re.findall(r"[^_.:=]*[_.:=]*", piece))
    ]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > letters:
            lines.append("")
        lines[-1] += piece
    return "\n".join(part for line in lines for part in textwrap.wrap(line.rstrip(), letters))


def letters_in(width_in: float, size: float) -> int:
    """Letters of a size in points that fit a width."""
    return int(width_in / (size * LETTER_IN))


def bytes_words(size: float, _position: object = None) -> str:
    """Bytes for a tick or a label, in decimal units."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} B" if size else "0"


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
_LINE_IN = 0.145
"""Height of a line of text in titles, notes and legends."""
_TICKS_IN = 0.35
"""Height of a panel's ticks, and of the space between panels."""


class Panels:
    """A figure of panels in lines: title and what holds for all panels above, legend and how to read it below.

    Args:
        title: Title of the figure.
        note: Legend's text on reading it.
        groups: Groups of the panels, or of their lines.
        columns: Panels in a line.
        panel_in: Width and height of a panel.
        lines: As many as the groups need, by default.
    """

    def __init__(
        self, title: str, note: str, groups: Sequence[Group] = (), *, columns: int, panel_in: tuple[float, float],
        lines: int = 0,
    ) -> None:  # fmt: skip
        lines = lines or math.ceil(len(groups) / columns)
        self._panel_in = panel_in[0]
        self._width_in = max(6.4, panel_in[0] * columns)
        self._names = headings(groups, sized=False)
        self._note = textwrap.wrap(note, letters_in(self._width_in - 0.2, SMALL))
        self._panels_in = lines * panel_in[1]
        words = textwrap.wrap(title, letters_in(self._width_in - 0.2, TITLE))
        self._around_in = _LINE_IN * (len(words) + len(self._note)) + 0.25
        self.figure = Figure(layout="constrained")
        self.axes: list[list[Axes]] = self.figure.subplots(lines, columns, squeeze=False).tolist()
        self.flat = list(itertools.chain(*self.axes))
        for axes in self.flat:
            axes.tick_params(labelsize=SMALL)
        self.figure.suptitle("\n".join(words), fontsize=TITLE)

    def name(self, axes: Axes, number: int | None, *more: str) -> None:
        """Name the dataset of a panel's group, what tells it from the others, and more; None: it has no group."""
        letters = letters_in(self._panel_in - 0.7, LABEL)
        names = () if number is None else (self._names[number],)
        axes.set_title("\n".join(wrapped(text, letters) for text in (*names, *more)), fontsize=LABEL + 0.5)

    def label(self, x: str = "", y: str = "") -> None:
        """Label all panels below, and the first of every line beside."""
        for axes in self.flat if x else ():
            axes.set_xlabel(x, fontsize=SMALL)
        for line in self.axes:
            line[0].set_ylabel(y, fontsize=LABEL)

    def close(self, *, first: Sequence[str] = ()) -> Figure:
        """Put the legend, led by `first`, and the note below, hide empty panels, make room. Returns the figure."""
        handles: dict[str, Artist] = {}
        titles = ticks = 0
        for axes in self.figure.axes:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            axes.set_visible(axes.has_data() or bool(axes.texts))
        order = sorted(handles, key=lambda label: first.index(label) if label in first else len(first))
        longest = max(len(line) for label in handles for line in label.splitlines())
        columns = max(1, min(len(handles), int(self._width_in / (0.6 + longest * LABEL * LETTER_IN))))
        tallest = max(len(label.splitlines()) for label in handles)
        legend_in = _LINE_IN * tallest * math.ceil(len(handles) / columns) + 0.1
        for row in self.axes:
            titles += max(len(axes.get_title().splitlines()) for axes in row)
            ticks += max(len(axes.get_xlabel().splitlines()) for axes in row)
        words_in = _LINE_IN * (titles + ticks) + _TICKS_IN * len(self.axes)
        self.figure.set_size_inches(self._width_in, self._panels_in + words_in + self._around_in + legend_in)
        self.figure.legend(
            [handles[label] for label in order],
            order,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=LABEL,
            title="\n".join(self._note),
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
        at, values, yerr=(down, up), label=label,
        color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
        linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
        markersize=4.5, linewidth=1.1, elinewidth=0.9, capsize=2, zorder=3, **more,
    )  # fmt: skip


def ticks_at(axis: Axis, ticks: Sequence[float], words: Formatter | Callable[[float, int], str]) -> None:
    """Have these ticks and no others, as a logarithmic axis would not."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(words if isinstance(words, Formatter) else FuncFormatter(words))


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: as many as have room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [
        [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]
        for steps in _STEPS
    ]
    fitting = [ticks for ticks in choices if len(ticks) <= _MOST_TICKS]
    return max(fitting, key=len) if fitting else choices[-1][:: math.ceil(len(choices[-1]) / _MOST_TICKS)]
