"""How many ids were accessed how often: enough for shares, curves and exponents, and far smaller than all counts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from workloads.frequency import Ints

_CURVE_POINTS = 120
_FIT_POINTS = 64
_FEWEST_FIT_IDS = 10


@dataclass(frozen=True)
class Spectrum:
    """Ids by number of accesses.

    Attributes:
        frequencies: Accesses per id, falling, at least 1, int64 `[n]`.
        ids: Number of ids with that many accesses, at least 1, int64 `[n]`.
    """

    frequencies: Ints
    ids: Ints

    @classmethod
    def of(cls, counts: Ints) -> Self:
        """The spectrum of accesses per id, int64 `[rows]`; ids never accessed are left out."""
        return cls._sorted(pl.Series("frequencies", counts).value_counts(name="ids"))

    @classmethod
    def merged(cls, spectra: Iterable["Spectrum"]) -> Self:
        """The spectrum of all ids of several tables, at least one."""
        frames = (pl.DataFrame({"frequencies": part.frequencies, "ids": part.ids}) for part in spectra)
        return cls._sorted(pl.concat(frames).group_by("frequencies").sum())

    @classmethod
    def _sorted(cls, frame: pl.DataFrame) -> Self:
        accessed = frame.filter(pl.col("frequencies") > 0).sort("frequencies", descending=True).cast(pl.Int64)
        return cls(frequencies=accessed["frequencies"].to_numpy(), ids=accessed["ids"].to_numpy())

    @property
    def distinct(self) -> int:
        """Ids accessed at least once."""
        return int(self.ids.sum())

    @property
    def seen_once(self) -> int:
        """Ids accessed exactly once."""
        return int(self.ids[self.frequencies == 1].sum())

    def top_share(self, share: float) -> float | None:
        """Share of accesses to the most frequent ids, this share of the ids seen, rounded up; None without ids."""
        if self.distinct == 0:
            return None
        top = math.ceil(round(self.distinct * share, 6))  # 0.1 * 30 is not quite 3
        more_frequent = np.cumsum(self.ids) - self.ids
        top_ids = np.clip(top - more_frequent, 0, self.ids)
        return int(top_ids @ self.frequencies) / int(self.ids @ self.frequencies)

    def curve(self, points: int = _CURVE_POINTS) -> tuple[Ints, Ints]:
        """At most `points` ranks from 1 to `distinct`, evenly spaced on a log scale, with the accesses at each."""
        if self.distinct == 0:
            return self.ids, self.frequencies
        ranks = np.unique(np.rint(np.geomspace(1, self.distinct, points)).astype(np.int64))
        return ranks, self.frequencies[np.searchsorted(np.cumsum(self.ids), ranks)]

    def zipf_exponent(self) -> float | None:
        """Minus the slope of log frequency on log rank; None for fewer than 10 ids.

        Least squares over log-spaced ranks of the ids accessed at least twice: how many ids were seen once
        depends on the size of the sample.
        """
        often = Spectrum(self.frequencies[self.frequencies > 1], self.ids[self.frequencies > 1])
        if often.distinct < _FEWEST_FIT_IDS:
            return None
        ranks, accesses = often.curve(_FIT_POINTS)
        slope, _ = np.polyfit(np.log(ranks), np.log(accesses), 1)
        return -float(slope)
