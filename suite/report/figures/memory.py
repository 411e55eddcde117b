"""Memory of every system by tier and purpose, by its own account, beside the peaks that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from suite.records.measured import Memory
from suite.report.figures.entries import Entry, beside, entries, lines_in, list_entries
from suite.report.figures.panels import LABEL, Panels, bytes_words
from suite.report.source import Source
from suite.tables.figure_style import BLACK, FILLS
from suite.tables.settings import sweeps

TITLE = "Memory by tier and purpose"
NOTE = (
    "Every system at the smallest cache that it ran with. Bars: its own account, the largest over rounds, and its sum; "
    "marks: peaks of the whole process, model and libraries included."
)
NOTE_CPU = " On a CPU they count the device's part as well, which RAM plays."
TIERS, PURPOSES = ("device", "host", "disk"), ("rows", "state", "index", "staging")
PEAKS = (
    ("device", "device_allocated_bytes", "torch's peak allocated", "|"),
    ("device", "device_reserved_bytes", "torch's peak reserved", "d"),
    ("device", "device_used_bytes", "the driver's peak", "*"),
    ("host", "host_peak_rss_bytes", "peak resident memory (RSS)", "o"),
)
"""Tier, field of `Memory`, words and mark."""
_PANEL_IN, _NAMES_IN = 2.6, 2.0


def draw(source: Source) -> Figure | None:
    """The figure; None where nothing was measured."""
    listed = [(sweep[0], entries(sweep)) for sweep in sweeps(source.groups)]
    shown = [(group, found) for group, found in listed if any(entry.records for entry in found)]
    if not shown:
        return None
    tiers = [tier for tier in TIERS if any(_said(entry, tier) for _, found in shown for entry in found)]
    panels = Panels(
        TITLE,
        NOTE + (NOTE_CPU if any(group.on_cpu for group, _ in shown) else ""),
        [group for group, _ in shown],
        heights_in=[lines_in(found) for _, found in shown],
        columns=len(tiers),
        panel_in=_PANEL_IN,
        names_in=_NAMES_IN,
    )
    for line, ((group, found), row) in enumerate(zip(shown, panels.axes, strict=True)):
        for number, (tier, axes) in enumerate(zip(tiers, row, strict=True)):
            places = list_entries(axes, found, labelled=number == 0)
            _panel(axes, found, places, tier)
            panels.name(axes, line, margin_in=0.3)
            played = ", played by RAM" if tier == "device" and group.on_cpu else ""
            axes.set_xlabel(f"{tier}{played}, bytes", fontsize=LABEL)
    return panels.close(first=PURPOSES)


def _panel(axes: Axes, entries: Sequence[Entry], places: Sequence[float], tier: str) -> None:
    said = [_by_purpose(entry, tier) for entry in entries]
    ends, furthest = [0] * len(said), 1
    for purpose, (colour, hatch) in zip(PURPOSES, FILLS, strict=False):
        bars = [
            (place, end, width)
            for place, end, one in zip(places, ends, said, strict=True)
            if (width := one.get(purpose, 0))
        ]
        if bars:
            at_places, starts, widths = zip(*bars, strict=True)
            axes.barh(
                at_places, widths, height=0.5, left=starts,
                label=purpose, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.3,
            )  # fmt: skip
        ends = [end + one.get(purpose, 0) for end, one in zip(ends, said, strict=True)]
    for at, field, words, mark in PEAKS:
        points = [
            (peak, place)
            for entry, place in zip(entries, places, strict=True)
            if at == tier and (peak := _peak(entry, field)) is not None
        ]
        if points:
            furthest = max(furthest, *(peak for peak, _ in points))
            axes.plot(
                *zip(*points, strict=True),
                label=words, linestyle="", color=BLACK, marker=mark, markersize=5, markerfacecolor="white",
            )  # fmt: skip
    for entry, place, total in zip(entries, places, ends, strict=True):
        beside(axes, place, _words(entry, total))
    axes.set_xlim(0, 1.06 * max(furthest, *ends))
    axes.xaxis.set_major_formatter(FuncFormatter(bytes_words))


def _words(entry: Entry, total: int) -> str:
    if not entry.records:
        return f"n/a: {entry.row.status.value}"
    return bytes_words(total) if total else "none"


def _said(entry: Entry, tier: str) -> bool:
    """Whether anything is known of a system's bytes in a tier."""
    peaks = any(at == tier and _peak(entry, field) is not None for at, field, _, _ in PEAKS)
    return peaks or bool(_by_purpose(entry, tier))


def _by_purpose(entry: Entry, tier: str) -> dict[str, int]:
    return {
        purpose: size
        for purpose in PURPOSES
        if (size := max((memory.anatomy_bytes.get(f"{tier}/{purpose}", 0) for memory in _memories(entry)), default=0))
    }


def _peak(entry: Entry, field: str) -> int | None:
    known = [peak for memory in _memories(entry) if (peak := getattr(memory, field)) is not None]
    return max(known, default=None)


def _memories(entry: Entry) -> list[Memory]:
    return [run.measurement.memory for run in entry.records if run.measurement is not None]
