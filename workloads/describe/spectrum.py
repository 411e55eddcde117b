"""How many ids were accessed how often: enough for shares, curves and exponents, and far smaller than all counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from workloads.describe.loops import Ints

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
    def of(cls, counts: Ints) -> Spectrum:
        """The spectrum of accesses per id, int64 `[rows]`; ids never accessed are left out."""
        return cls._sorted(pl.Series("frequencies", counts).value_counts(name="ids"))

    @classmethod
    def merged(cls, spectra: Iterable[Spectrum]) -> Spectrum:
        """The spectrum of all ids of several tables."""
        nothing = np.zeros(0, np.int64)
        parts = [(nothing, nothing), *((spectrum.frequencies, spectrum.ids) for spectrum in spectra)]
        frames = pl.concat(pl.DataFrame({"frequencies": frequencies, "ids": ids}) for frequencies, ids in parts)
        return cls._sorted(frames.group_by("frequencies").sum())

    @classmethod
    def _sorted(cls, frame: pl.DataFrame) -> Spectrum:
        accessed = frame.filter(pl.col("frequencies") > 0).sort("frequencies", descending=True).cast(pl.Int64)
        return cls(frequencies=accessed["frequencies"].to_numpy(), ids=accessed["ids"].to_numpy())

    @property
    def distinct(self) -> int:
        """Ids accessed at least once."""
        return int(self.ids.sum())

    @property
    def accesses(self) -> int:
        """Accesses of all ids."""
        return int((self.ids * self.frequencies).sum())

    @property
    def singletons(self) -> int:
        """Ids accessed exactly once."""
        return int(self.ids[self.frequencies == 1].sum())

    def frequency(self, ranks: Ints) -> Ints:
        """Accesses of the ids at these ranks, int64; ranks count from 1 to `distinct`."""
        found: Ints = self.frequencies[np.searchsorted(np.cumsum(self.ids), ranks)]
        return found

    def top_accesses(self, ranks: Ints) -> Ints:
        """Accesses of the most frequent ids up to these ranks, int64; ranks count from 1 to `distinct`."""
        ids = np.cumsum(self.ids)
        accesses = np.cumsum(self.ids * self.frequencies)
        where = np.searchsorted(ids, ranks)
        found: Ints = accesses[where] - (ids[where] - ranks) * self.frequencies[where]
        return found

    def top_share(self, share: float) -> float | None:
        """Share of accesses to the most frequent ids, this share of the ids seen, rounded up; None without ids."""
        if self.distinct == 0:
            return None
        rank = math.ceil(round(self.distinct * share, 6))  # 0.1 * 30 is not quite 3
        return int(self.top_accesses(np.array([rank]))[0]) / self.accesses

    def log_ranks(self, points: int) -> Ints:
        """At most `points` ranks from 1 to `distinct`, evenly spaced on a log scale."""
        if self.distinct == 0:
            return np.zeros(0, np.int64)
        return np.unique(np.rint(np.geomspace(1, self.distinct, points)).astype(np.int64))

    def zipf_exponent(self) -> float | None:
        """Minus the slope of log frequency on log rank; None for fewer than 10 ids.

        Least squares over log-spaced ranks of the ids accessed at least twice: how many ids were seen once
        depends on the size of the sample.
        """
        often = Spectrum(self.frequencies[self.frequencies > 1], self.ids[self.frequencies > 1])
        if often.distinct < _FEWEST_FIT_IDS:
            return None
        ranks = often.log_ranks(_FIT_POINTS)
        slope, _ = np.polyfit(np.log(ranks), np.log(often.frequency(ranks)), 1)
        return -float(slope)
