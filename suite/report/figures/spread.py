"""A mean over rounds with its interval, as figures draw it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from suite.tables.statistics import t_quantile_95


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over rounds.

    Attributes:
        mean: Geometric.
        low, high: 95 % interval, Student's t on the logarithms. None: a single round has no spread.
    """

    mean: float
    low: float | None
    high: float | None

    @property
    def whisker(self) -> tuple[float, float]:
        """Lengths below and above the mean; not a number where there is no interval, which draws nothing."""
        if self.low is None or self.high is None:
            return math.nan, math.nan
        return self.mean - self.low, self.high - self.mean


def spread(values: Iterable[float]) -> Spread:
    """Mean and interval of positive values, one per round."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Spread(mean=math.exp(mean), low=None, high=None)
    half = t_quantile_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Spread(mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
