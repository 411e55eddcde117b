"""Dividing the slots of a cache among its tables, from the curve of each table: is it worth it?

Each slot goes where it saves most misses, on the lower convex hull of each curve: no division is better where curves
are convex (Fox, "Discrete optimization via marginal analysis", Management Science 13(3), 1966). Curves of LRU need not
be; on a hull the steps of a curve that is not are taken whole or, the last one, in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.records.command_line import BadOption
from suite.simulate.curves import Curve, Curves
from suite.simulate.trace import Int64s

Float64s = NDArray[np.float64]

WORTH = 0.02
"""A division is worth it if it saves so large a share of the misses of one cache for all tables."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """Slots of each table, at least its largest batch, and the distinct rows that its own LRU cache then misses."""

    slots: tuple[int, ...]
    misses: tuple[int, ...]

    @property
    def total_misses(self) -> int:
        """Misses of all tables."""
        return sum(self.misses)


@dataclass(frozen=True, kw_only=True)
class SlotSplit:
    """Caches of their own for all tables, beside one that they share.

    Attributes:
        slots: To divide.
        cache_rows: Slots by table, where they save most, as `CachedEmbeddingBagCollection` takes them.
        misses: Of each table.
        shared_misses: Of one cache for all tables.
    """

    slots: int
    cache_rows: dict[str, int]
    misses: tuple[int, ...]
    shared_misses: int

    @property
    def unused(self) -> int:
        """Slots that the division has no use for: every row that was used has one."""
        return self.slots - sum(self.cache_rows.values())

    @property
    def answer(self) -> str:
        """Whether it is worth dividing the slots, in one sentence."""
        fewer = self.shared_misses - sum(self.misses)
        saved = fewer / self.shared_misses if self.shared_misses else 0.0
        effect = f"{abs(saved):.1%} {'fewer' if saved >= 0 else 'more'} misses than one shared by all tables"
        if saved >= WORTH:
            return f"Worth it: caches of their own have {effect}."
        if saved > 0:
            return f"Hardly worth it: caches of their own have only {effect}."
        return f"Not worth it: caches of their own have {effect}."


def split_slots(curves: Curves, slots: int) -> SlotSplit:
    """Divide slots among the tables of curves that were made with `per_table`.

    Raises:
        BadOption: there are fewer slots than the largest batches of the tables have distinct rows.
    """
    tables = curves.tables
    least = int(_floors(tables).sum())
    if slots < least:
        raise BadOption(
            f"--split: {slots:,} slots are too few to divide: the largest batches of the {len(tables)} tables have "
            f"{least:,} distinct rows together, give at least as many slots or lower --batch-size"
        )
    division = divide_greedily(tables, slots)
    return SlotSplit(
        slots=slots,
        cache_rows=dict(zip([curve.name for curve in tables], division.slots, strict=True)),
        misses=division.misses,
        shared_misses=curves.pooled.misses(slots),
    )


def divide_greedily(tables: Sequence[Curve], slots: int, *, resident: bool = False) -> Division:
    """Give every table its largest batch, and the other slots where they save most; memory 32 B per row of a table.

    Args:
        tables: Their curves.
        slots: To divide.
        resident: A table with a slot for every row is no cache: it lies on the device whole and misses nothing.
    """
    floors = _floors(tables)
    own = [_steps(curve) for curve in tables]
    whole = {place: _up_to_all_rows(curve, *own[place]) for place, curve in enumerate(tables) if resident}
    while True:
        given = _filled(floors, [whole.get(place, steps) for place, steps in enumerate(own)], slots)
        # the last step to all rows saves nothing in part: a table that does not get there goes on with its curve
        cut = [n for n, (widths, _) in whole.items() if tables[n].rows - int(widths[-1]) < given[n] < tables[n].rows]
        if not cut:
            pairs = [(curve, int(count)) for curve, count in zip(tables, given, strict=True)]
            misses = (0 if resident and count >= curve.rows else curve.misses(count) for curve, count in pairs)
            return Division(slots=tuple(count for _, count in pairs), misses=tuple(misses))
        for place in cut:
            del whole[place]


def _filled(floors: Int64s, steps: Sequence[tuple[Int64s, Float64s]], slots: int) -> Int64s:
    """Slots of each table: its floor, and the steps that save most, best first; the last one perhaps in part."""
    owner = np.repeat(np.arange(len(steps)), [widths.size for widths, _ in steps])
    widths = np.concatenate([widths for widths, _ in steps])
    gains = np.concatenate([gains for _, gains in steps])
    best_first = np.argsort(-gains, kind="stable")
    left = slots - int(floors.sum())
    taken = np.diff(np.minimum(np.cumsum(widths[best_first]), left), prepend=0)
    given: Int64s = floors + np.bincount(owner[best_first], taken, minlength=len(steps)).astype(np.int64)
    return given


def _floors(tables: Sequence[Curve]) -> Int64s:
    return np.array([curve.least_slots for curve in tables], np.int64)


def _steps(curve: Curve) -> tuple[Int64s, Float64s]:
    """The hull of a curve from its largest batch on: widths of its steps in slots, and misses saved by each slot.

    It has the levels that falling isotonic regression finds in the hits of each depth (Barlow, Bartholomew, Bremner and
    Brunk, "Statistical Inference under Order Restrictions", 1972).
    """
    from scipy.optimize import isotonic_regression

    first = min(curve.least_slots, curve.used_rows)
    hits = np.pad(curve.within, (1, 0))[first:]
    corners = isotonic_regression(np.diff(hits), increasing=False).blocks if hits.size > 1 else np.zeros(1, np.int64)
    widths = np.diff(corners).astype(np.int64)
    return widths, np.diff(hits[corners]) / widths


def _up_to_all_rows(curve: Curve, widths: Int64s, gains: Float64s) -> tuple[Int64s, Float64s]:
    """Steps with one more, to all rows, that saves what the others do not; steps below its slope are part of it."""
    reached = curve.least_slots + int(widths.sum())
    saved = float(curve.misses(reached))
    width, kept = curve.rows - reached, widths.size
    while kept and saved >= gains[kept - 1] * width:
        kept -= 1
        width += int(widths[kept])
        saved += float(gains[kept] * widths[kept])
    if not width:  # the largest batch has all rows
        return np.zeros(1, np.int64), np.zeros(1)
    return np.append(widths[:kept], width), np.append(gains[:kept], saved / width)
