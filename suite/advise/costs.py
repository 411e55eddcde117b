"""Named costs of a step: each a line over what the step counts, with its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Self

import numpy as np
from pydantic import Field

from suite.records.model import Model
from suite.simulate.models.model import Tally


class Counts(Model):
    """What a step counts, on average over the steps counted."""

    lookups: float
    distinct: float
    """Distinct rows."""
    misses: float = 0.0
    """Distinct rows that were not cached; 0 for systems without a cache."""
    rows_fetched: float = 0.0
    rows_written_back: float = 0.0
    overflow_share: float = 0.0
    """Share of steps with more distinct rows than the cache has slots."""
    largest: float = 0.0
    """Most distinct rows of a step."""

    @classmethod
    def of(cls, tally: Tally, *, largest: int = 0) -> Self:
        """The averages of a replay; `largest` is the most distinct rows of any of its batches."""
        steps = max(1, tally.batches)
        return cls(
            lookups=tally.lookups / steps,
            distinct=tally.unique_ids / steps,
            misses=tally.unique_misses / steps,
            rows_fetched=tally.rows_fetched / steps,
            rows_written_back=tally.rows_written_back / steps,
            overflow_share=tally.overflow_batches / steps,
            largest=largest,
        )

    @property
    def moved(self) -> float:
        """Rows moved, both ways."""
        return self.rows_fetched + self.rows_written_back

    def with_misses(self, factor: float) -> Self:
        """The same with so many times the misses, no more of them than there are distinct rows."""
        most = self.distinct / self.misses if self.misses else factor
        by = min(factor, most)
        return self.model_copy(
            update={
                "misses": self.misses * by,
                "rows_fetched": self.rows_fetched * by,
                "rows_written_back": self.rows_written_back * by,
            }
        )


COUNTED = ("lookups", "distinct", "misses", "moved")
"""What a line may depend on."""


class Line(Model):
    """Seconds of one cost: a part that every step pays, and one for each thing counted. None is negative."""

    fixed_s: float = Field(default=0.0, ge=0)
    per_lookup_s: float = Field(default=0.0, ge=0)
    per_distinct_s: float = Field(default=0.0, ge=0)
    per_miss_s: float = Field(default=0.0, ge=0)
    per_moved_s: float = Field(default=0.0, ge=0)
    error: float = Field(default=0.0, ge=0)
    """How far the points of the calibration lie from the line: root of the mean square, relative to their mean."""

    def seconds(self, counts: Counts) -> float:
        """The cost of a step."""
        return self.fixed_s + self.varying_s(counts)

    def varying_s(self, counts: Counts) -> float:
        """The same without what every step pays."""
        return (
            self.per_lookup_s * counts.lookups
            + self.per_distinct_s * counts.distinct
            + self.per_miss_s * counts.misses
            + self.per_moved_s * counts.moved
        )


_COEFFICIENTS = {
    "lookups": "per_lookup_s",
    "distinct": "per_distinct_s",
    "misses": "per_miss_s",
    "moved": "per_moved_s",
}


def fitted(points: Sequence[tuple[Counts, float]], *, over: Sequence[str]) -> Line:
    """The line that comes closest to points, by least squares, no coefficient being negative.

    A few unknowns leave few sets of them that are above zero: all are tried, which finds the optimum exactly.

    Args:
        points: Counts, and the seconds measured.
        over: Which of `COUNTED` it depends on.
    """
    seconds = np.array([value for _, value in points])
    columns = {"fixed_s": np.ones(len(points))}
    columns |= {_COEFFICIENTS[name]: np.array([getattr(counts, name) for counts, _ in points]) for name in over}
    names = [name for name, values in columns.items() if values.any()]
    best: tuple[float, dict[str, float]] = (float(np.square(seconds).sum()), {})
    for size in range(1, min(len(names), len(points)) + 1):
        for chosen in combinations(names, size):
            matrix = np.stack([columns[name] for name in chosen], axis=1)
            scale = matrix.max(axis=0)
            found = np.linalg.lstsq(matrix / scale, seconds, rcond=None)[0] / scale
            left = float(np.square(matrix @ found - seconds).sum())
            if (found >= 0).all() and left < best[0]:
                best = left, dict(zip(chosen, found.tolist(), strict=True))
    spread = (best[0] / len(points)) ** 0.5
    return Line(**best[1], error=spread / max(float(seconds.mean()), 1e-12))
