"""The systems of a sweep of cache sizes, and a panel with a line for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.report.figures.panels import SMALL, wrapped
from suite.tables.quantities import MISSING
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache_size
from systems.registry import CONTROLS

_LINE_IN = 0.24


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system at one cache size; its label has the size where the sweep has several, and rounds if not all count."""

    label: str
    row: Row

    @property
    def is_control(self) -> bool:
        """A yardstick, no system."""
        return base_name(self.row.system) in CONTROLS


def entries(sweep: Sequence[Group]) -> tuple[Entry, ...]:
    """Every system of groups that differ in size alone, with the smallest cache that it ran with; controls last."""
    rows = [row for group in sweep for row in merged_rows(group) if not row.again]
    smallest: dict[str, Row] = {}
    # of rows on the device, bytes are what shares and budgets have in common
    for row in sorted(rows, key=lambda row: (not row.measured_rounds, row.device_rows_bytes or 0)):
        smallest.setdefault(row.system, row)
    found = [Entry(label=_label(row, several=len(sweep) > 1), row=row) for row in smallest.values()]
    return tuple(sorted(found, key=_order))


def _label(row: Row, *, several: bool) -> str:
    words = cache_size(row.cell)
    size = f", {words}" if several and words != MISSING else ""
    rounds = f", {row.measured_rounds} of {row.rounds} rounds" if 0 < row.measured_rounds < row.rounds else ""
    return f"{row.system}{size}{rounds}"


def _order(entry: Entry) -> tuple[object, ...]:
    system = entry.row.system
    return entry.is_control, base_name(system) != REFERENCE, not is_baseline(system), system


def lines_in(entries: Sequence[Entry]) -> float:
    """Height of the entries' lines, for the longest of their labels."""
    tallest = max(len(wrapped(entry.label).splitlines()) for entry in entries)
    return max(_LINE_IN, 0.11 * tallest + 0.08) * (len(entries) + 0.5)


def list_entries(axes: Axes, entries: Sequence[Entry], *, labelled: bool) -> list[float]:
    """Make a panel with a line per entry, from above; controls stand apart. Returns the lines' heights."""
    places, at = [], 0.0
    for before, entry in zip((None, *entries), entries, strict=False):
        if entry.is_control and before is not None and not before.is_control:
            axes.axhline(at - 0.3, color="#555555", linewidth=0.6)
            at += 0.4
        places.append(at)
        at += 1
    words = [wrapped(f"{entry.label} (control)" if entry.is_control else entry.label) for entry in entries]
    axes.set_yticks(places if labelled else [], words if labelled else [], fontsize=SMALL)
    axes.set_ylim(at - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    return places


def beside(axes: Axes, place: float, words: str) -> None:
    """Write a value right of a panel, at the height of its entry."""
    axes.text(1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL - 0.5)
