"""Named costs of a step: each a line over what the step counts, with its calibration."""

from __future__ import annotations

from collections.abc import Sequence
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
    def of(cls, tally: Tally, *, largest: float = 0) -> Self:
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
        by = min(factor, self.distinct / self.misses) if self.misses else factor
        names = ("misses", "rows_fetched", "rows_written_back")
        return self.model_copy(update={name: by * getattr(self, name) for name in names})


COUNTED = {"lookups": "per_lookup_s", "distinct": "per_distinct_s", "misses": "per_miss_s", "moved": "per_moved_s"}
"""What a line may depend on, and its coefficient of each."""


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
        return float(sum(getattr(self, per) * getattr(counts, name) for name, per in COUNTED.items()))


def fitted(points: Sequence[tuple[Counts, float]], *, over: Sequence[str]) -> Line:
    """The line that comes closest to points, by least squares, no coefficient being negative.

    Args:
        points: Counts, and the seconds measured.
        over: Which of `COUNTED` it depends on.
    """
    from scipy.optimize import nnls

    seconds = np.array([value for _, value in points])
    matrix = np.array([[1.0, *(getattr(counts, name) for name in over)] for counts, _ in points])
    # columns and seconds of one size: what counts as 0 must not depend on units
    scale, unit = np.maximum(matrix.max(axis=0), 1.0), max(float(seconds.max()), 1e-12)
    found, distance = nnls(matrix / scale, seconds / unit)
    names = ["fixed_s", *(COUNTED[name] for name in over)]
    spread = unit * distance / len(points) ** 0.5
    coefficients = dict(zip(names, (unit * found / scale).tolist(), strict=True))
    return Line(**coefficients, error=spread / max(float(seconds.mean()), 1e-12))
