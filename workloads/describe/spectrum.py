"""How many ids were accessed how often: enough for shares, curves and exponents, and far smaller than all counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from workloads.describe.loops import Ints

_CHUNK = 1 << 22
_SMALL = 1 << 16
_FIT_POINTS = 64
_FEWEST_FIT_IDS = 10


@dataclass(frozen=True)
class Spectrum:
    """Ids by number of accesses.

    Attributes:
        frequencies: Accesses per id, falling, at least 1, int64 `[n]`.
        ids: Ids with so many accesses, at least 1, int64 `[n]`.
    """

    frequencies: Ints
    ids: Ints

    @classmethod
    def of(cls, counts: Ints) -> Spectrum:
        """The spectrum of accesses per id, int64 `[rows]`; ids never accessed are left out."""
        parts = []
        for start in range(0, len(counts), _CHUNK):
            chunk = counts[start : start + _CHUNK]
            small = np.bincount(chunk[chunk < _SMALL])
            seen = np.flatnonzero(small)
            parts.append((seen, small[seen]))
            parts.append(np.unique(chunk[chunk >= _SMALL], return_counts=True))
        return cls._summed(parts)

    @classmethod
    def merged(cls, spectra: Iterable[Spectrum]) -> Spectrum:
        """The spectrum of all ids of several tables."""
        return cls._summed([(spectrum.frequencies, spectrum.ids) for spectrum in spectra])

    @classmethod
    def _summed(cls, parts: list[tuple[Ints, Ints]]) -> Spectrum:
        nothing = (np.zeros(0, np.int64),) * 2
        frequencies, ids = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
        values, where = np.unique(frequencies, return_inverse=True)
        summed = np.zeros(len(values), np.int64)
        np.add.at(summed, where, ids)
        accessed = values > 0
        return cls(frequencies=values[accessed][::-1], ids=summed[accessed][::-1])

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
        """Share of accesses that go to this share of the ids seen, rounded up to whole ids; None without any."""
        if self.distinct == 0:
            return None
        rank = math.ceil(round(self.distinct * share, 6))  # 0.1 * 30 is not quite 3
        return int(self.top_accesses(np.array([rank]))[0]) / self.accesses

    def log_ranks(self, points: int) -> Ints:
        """At most so many ranks from 1 to `distinct`, evenly spaced on a log scale."""
        if self.distinct == 0:
            return np.zeros(0, np.int64)
        return np.unique(np.rint(np.geomspace(1, self.distinct, points)).astype(np.int64))

    def zipf_exponent(self) -> float | None:
        """Minus the slope of log frequency on log rank; None for fewer than 10 ids.

        Least squares over log-spaced ranks of the ids accessed at least twice: ids seen once are a shelf whose length
        tells of the sample's size.
        """
        often = Spectrum(self.frequencies[self.frequencies > 1], self.ids[self.frequencies > 1])
        if often.distinct < _FEWEST_FIT_IDS:
            return None
        ranks = often.log_ranks(_FIT_POINTS)
        slope, _ = np.polyfit(np.log(ranks), np.log(often.frequency(ranks)), 1)
        return -float(slope)
