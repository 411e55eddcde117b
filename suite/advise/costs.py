"""What a step counts, and what that costs: each named cost is a line over the counts."""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import NonNegativeFloat

from suite.records.base import Model
from suite.simulate.models.model import Tally

Basis = Literal["calibrated", "modelled"]
"""Whether costs were measured on this machine, or follow from the description of another."""
Terms = tuple[dict[str, float], dict[str, float]]
"""Seconds of a step by name: those that add up to the step, and those that go on beside it."""


class NotCalibrated(LookupError):
    """No cost is known for a case; the message says which, and why."""


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
        """The averages of a replay; `largest` is the most distinct rows of a counted batch."""
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


class Line(Model):
    """Seconds of one cost: a part that every step pays, and one for each thing counted, by its name in `Counts`."""

    fixed_s: NonNegativeFloat = 0.0
    per_s: dict[str, NonNegativeFloat] = {}

    @classmethod
    def through(cls, points: Sequence[Counts], seconds: Sequence[float], *, over: Sequence[str]) -> Self:
        """The line that comes closest to points, by least squares; it depends on what `over` names of `Counts`."""
        from scipy.optimize import nnls

        matrix = np.array([[1.0, *(getattr(counts, name) for name in over)] for counts in points])
        # columns and seconds of one size: what counts as 0 must not depend on units
        scale, unit = np.maximum(matrix.max(axis=0), 1.0), max(*seconds, 1e-12)
        found, _ = nnls(matrix / scale, np.array(seconds) / unit)
        fixed, *per = (unit * found / scale).tolist()
        return cls(fixed_s=fixed, per_s=dict(zip(over, per, strict=True)))

    def seconds(self, counts: Counts) -> float:
        """The cost of a step."""
        return self.fixed_s + sum(per * float(getattr(counts, name)) for name, per in self.per_s.items())
