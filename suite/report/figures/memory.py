"""Memory of every system by tier and purpose, by its own account, beside what was measured."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from suite.report.figures.entries import Entry, beside, entries, lines_in, list_entries
from suite.report.figures.panels import LABEL, Panels, bytes_words
from suite.report.source import Source
from suite.tables.figure_style import BLACK, FILLS
from suite.tables.settings import sweeps
from systems.answers import Purpose, Tier

TITLE = "Memory by tier and purpose"
NOTE = (
    "Every system at the smallest cache that it ran with. Bars: its own account, the largest over rounds, and its sum; "
    "marks: of the whole process, model and libraries included."
)
NOTE_CPU = " On a CPU they count the device's part as well, which RAM plays."
PEAKS = (
    (Tier.DEVICE, "device_allocated_bytes", "torch's peak allocated", "|"),
    (Tier.DEVICE, "device_reserved_bytes", "torch's peak reserved", "d"),
    (Tier.DEVICE, "device_used_bytes", "after training, as the driver says", "*"),
    (Tier.HOST, "host_peak_rss_bytes", "peak resident memory (RSS)", "o"),
)
"""Tier, field of `Memory`, words and mark."""


def draw(source: Source) -> Figure | None:
    """The figure; None where nothing was measured."""
    listed = [(sweep[0], entries(sweep)) for sweep in sweeps(source.groups)]
    shown = [(group, found) for group, found in listed if any(entry.row.measured_rounds for entry in found)]
    if not shown:
        return None
    tiers = [tier for tier in Tier if any(_said(entry, tier) for _, found in shown for entry in found)]
    panels = Panels(
        TITLE,
        NOTE + (NOTE_CPU if any(group.on_cpu for group, _ in shown) else ""),
        [group for group, _ in shown],
        columns=len(tiers),
        panel_in=(2.6, 0.0),
        heights_in=[lines_in(found) for _, found in shown],
        names_in=2.0,
    )
    for line, ((group, found), row) in enumerate(zip(shown, panels.axes, strict=True)):
        for number, (tier, axes) in enumerate(zip(tiers, row, strict=True)):
            places = list_entries(axes, found, labelled=number == 0)
            _panel(axes, found, places, tier)
            panels.name(axes, line, margin_in=0.3)
            played = ", played by RAM" if tier is Tier.DEVICE and group.on_cpu else ""
            axes.set_xlabel(f"{tier}{played}, bytes", fontsize=LABEL)
    return panels.close(first=list(Purpose))


def _panel(axes: Axes, entries: Sequence[Entry], places: Sequence[float], tier: Tier) -> None:
    ends, furthest = [0] * len(entries), 1
    for purpose, (colour, hatch) in zip(Purpose, FILLS, strict=False):
        widths = [_largest(entry, tier, purpose) for entry in entries]
        bars = [bar for bar in zip(places, ends, widths, strict=True) if bar[-1]]
        if bars:
            at_places, starts, lengths = zip(*bars, strict=True)
            axes.barh(
                at_places, lengths, height=0.5, left=starts,
                label=purpose, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.3,
            )  # fmt: skip
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for at, field, words, mark in PEAKS:
        peaks = [(_peak(entry, field), place) for entry, place in zip(entries, places, strict=True) if at is tier]
        points = [(peak, place) for peak, place in peaks if peak is not None]
        if points:
            furthest = max(furthest, *(peak for peak, _ in points))
            axes.plot(
                *zip(*points, strict=True),
                label=words, linestyle="", color=BLACK, marker=mark, markersize=5, markerfacecolor="white",
            )  # fmt: skip
    for entry, place, total in zip(entries, places, ends, strict=True):
        measured = bytes_words(total) if total else "none"
        beside(axes, place, measured if entry.row.measured_rounds else f"n/a: {entry.row.status.value}")
    axes.set_xlim(0, 1.06 * max(furthest, *ends))
    axes.xaxis.set_major_formatter(FuncFormatter(bytes_words))


def _said(entry: Entry, tier: Tier) -> bool:
    """Whether anything is known of a system's bytes in a tier."""
    peaks = any(at is tier and _peak(entry, field) is not None for at, field, _, _ in PEAKS)
    return peaks or any(_largest(entry, tier, purpose) for purpose in Purpose)


def _largest(entry: Entry, tier: Tier, purpose: Purpose) -> int:
    accounts = (measurement.memory.anatomy_bytes for measurement in entry.row.measurements)
    return max((account.get(f"{tier}/{purpose}", 0) for account in accounts), default=0)


def _peak(entry: Entry, field: str) -> int | None:
    peaks = [getattr(measurement.memory, field) for measurement in entry.row.measurements]
    return max((peak for peak in peaks if peak is not None), default=None)
