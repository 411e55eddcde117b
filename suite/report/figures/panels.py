"""Panels side by side under one title, over one legend, in a figure that is as large as they need."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.figures.words import LABEL, LETTER_IN, SMALL, TITLE, letters_in, wrapped

COLUMNS = 3
"""Panels side by side, at most."""
_LINE_IN = 0.145
"""Of text, in titles, notes and legends."""
_TICKS_IN = 0.35
"""Of a panel: its ticks, and what lies between panels."""


class Panels:
    """A figure of panels in lines: title above, legend and notes below.

    Args:
        title: What the figure shows.
        facts: What holds for all panels, a sentence each.
        note: How to read it.
        heights_in: Of the panels' contents, line by line.
        columns: Panels in a line.
        width_in: Of the whole.
    """

    def __init__(
        self,
        title: str,
        facts: Iterable[str],
        note: str,
        *,
        heights_in: Sequence[float],
        columns: int,
        width_in: float,
    ) -> None:
        self._width_in = width_in
        self._note = textwrap.wrap(note, letters_in(width_in - 0.2, SMALL))
        self._panels_in = sum(heights_in)
        words = [part for text in (title, *facts) for part in textwrap.wrap(text, letters_in(width_in - 0.2, TITLE))]
        self._around_in = _LINE_IN * (len(words) + len(self._note)) + 0.25
        self.figure = Figure(layout="constrained")
        self.axes: list[list[Axes]] = self.figure.subplots(
            len(heights_in), columns, squeeze=False, gridspec_kw={"height_ratios": heights_in}
        ).tolist()
        self.figure.suptitle("\n".join(words), fontsize=TITLE)

    def close(self, *, first: Sequence[str] = ()) -> Figure:
        """Put legend and note below, hide panels without contents, and make room for all. Returns the figure.

        Args:
            first: Labels that lead the legend.
        """
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


def panel_title(axes: Axes, dataset: str, own: Iterable[str], *, letters: int) -> None:
    """Name the dataset, and what tells this panel from the others."""
    axes.set_title("\n".join(wrapped(text, letters) for text in (dataset, *own)), fontsize=LABEL + 0.5)
