"""Temporal structure of synthetic streams, as named tracks: `criteo_kaggle@drift`.

Without a track the samples of a stream are independent draws from one law. A track says how the stream depends on time.
Time is the number of a sample: it is 0 at the beginning of the training split, and goes on through validation and test.
Tables of at least `MOVING_ROWS` published rows follow the track, smaller ones do not change, and neither does the id
that stands for a missing value. What the figures of a track rest on is in docs/synthetic.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads import DataError
from workloads.streams.draws import Floats, Ints, compiled
from workloads.streams.zipf import RankLaw

MOVING_ROWS = 1000
"""Published rows from which a table follows a track."""

_CHUNK = 1 << 16
"""Ranks whose shares are worked out at a time."""
_GOLDEN, _UNIFORM_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(11)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


@dataclass(frozen=True)
class Table:
    """A table that follows a track.

    Attributes:
        law: Distribution of the ranks drawn at any instant.
        pinned: First ranks that keep their identity: 1 where rank 0 stands for a missing value, else 0.
        key: A random word.
        train_samples: Length of the training split.
    """

    law: RankLaw
    pinned: int
    key: np.uint64
    train_samples: int


def still_shares(law: RankLaw, *, first: int = 0) -> Iterator[tuple[int, Floats]]:
    """Shares of the ranks from `first` on by the law alone, in chunks: the first rank of each, and float64 shares."""
    for start in range(first, law.rows, _CHUNK):
        yield start, law.probabilities(start, min(law.rows, start + _CHUNK))


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Popular ids change over time; the popularity of the first, the second, ... of them does not.

    Each popular place of a table is held by `takers` ids in turn, each for one `lifetime`, in training splits; while it
    waits, an id is rare. Every place changes hands at times of its own. Of the most popular ids a share of `1 -
    distance / lifetime` is left after a distance below a lifetime, and then none until every taker had its turn.

    With `takers` times `places` ranks, rank `place + depth * places` belongs to one place, and identities
    `place * takers` to `place * takers + takers - 1` rotate over the ranks of their place, one step per lifetime. At
    every instant that is a permutation of the ranks. Ranks that do not fill a row of places keep their identity.
    """

    name: ClassVar[str] = "drift"
    lifetime: float = 0.1
    takers: int = 16

    def _places(self, table: Table) -> int:
        return (table.law.rows - table.pinned) // self.takers

    def _samples(self, table: Table) -> int:
        """The lifetime in samples."""
        return max(1, round(self.lifetime * table.train_samples))

    def identify(self, table: Table, ranks: Ints, samples: Ints) -> None:
        """Replace ranks by identities, in place.

        Args:
            table: The table.
            ranks: Of every lookup, int64 `[n]`.
            samples: Sample of every lookup, from the beginning of the training split, int64 `[n]`; ascending, and
                lookups of one bag follow one another.
        """
        places, lifetime = self._places(table), self._samples(table)
        _hand_over(samples, table.key, table.pinned, places, self.takers, lifetime, ranks)

    def shares(self, table: Table, samples: int) -> Iterator[tuple[int, Floats]]:
        """Expected share of every identity in the draws, mean over the first samples of the training split.

        Exact up to rounding, chunk by chunk: the first identity, and the shares of those from it on, float64.
        """
        law, pinned, places, takers = table.law, table.pinned, self._places(table), self.takers
        if pinned:
            yield 0, law.probabilities(0, pinned)
        chunk = max(1, _CHUNK // takers)
        for start in range(0, places, chunk):
            stop = min(places, start + chunk)
            ranks = [pinned + depth * places for depth in range(takers)]
            held = np.stack([law.probabilities(first + start, first + stop) for first in ranks])
            shares = np.zeros_like(held)
            for turn, time in self._times(table, start, stop, samples):
                shares += np.roll(held, -turn, axis=0) * time
            yield pinned + start * takers, np.ascontiguousarray(shares.T).reshape(-1)
        yield from still_shares(law, first=pinned + places * takers)

    def _times(self, table: Table, start: int, stop: int, samples: int) -> Iterator[tuple[int, Floats]]:
        """Turns that places have by `samples`, modulo `takers`, with the share of the time that each place is in it."""
        phases, lifetime = np.empty(stop - start, dtype=np.int64), self._samples(table)
        _phases(table.key, start, lifetime, phases)
        times: dict[int, Floats] = {}
        for turn in range((samples - 1 + lifetime) // lifetime + 1):
            begin = turn * lifetime - phases
            spent = np.clip(begin + lifetime, 0, samples) - np.clip(begin, 0, samples)
            position = turn % self.takers
            times[position] = times.get(position, 0.0) + spent / samples
        yield from times.items()


@compiled
def _hand_over(samples, key, pinned, places, takers, lifetime, ranks):
    """Replace popularity ranks by the ids that hold them; see `_phase_of` for when a place changes hands."""
    last = np.int64(0)
    turns = np.int64(0)
    age = np.int64(0)
    for i in range(samples.size):
        place = ranks[i] - pinned
        if place < 0 or place >= places * takers:
            continue
        age += samples[i] - last
        last = samples[i]
        if age >= lifetime or age < 0:
            turns += age // lifetime
            age %= lifetime
        depth = place // places
        place -= depth * places
        turn = turns + (age + _phase_of(key, place, lifetime) >= lifetime)
        ranks[i] = pinned + place * takers + (depth - turn) % takers


@compiled
def _phase_of(key, place, lifetime):
    """Age of the first holder of a place at sample 0, in samples: even over a lifetime.

    By SplitMix64 (Steele, Lea and Flood 2014), whose finaliser makes every bit depend on every bit.
    """
    word = key + np.uint64(place) * _GOLDEN
    word = (word ^ (word >> _SHIFTS[0])) * _FACTORS[0]
    word = (word ^ (word >> _SHIFTS[1])) * _FACTORS[1]
    word ^= word >> _SHIFTS[2]
    return np.int64(np.int64(word >> _UNIFORM_SHIFT) * 2.0**-53 * lifetime)


@compiled
def _phases(key, first, lifetime, out):
    """`_phase_of` places from `first` on."""
    for i in range(out.size):
        out[i] = _phase_of(key, first + i, lifetime)


TRACKS: Mapping[str, type[Drift]] = {Drift.name: Drift}


def split_name(name: str) -> tuple[str, Drift | None]:
    """Read `dataset` or `dataset@track`.

    Raises:
        DataError: no such track.
    """
    dataset, sign, track = name.partition("@")
    if not sign:
        return dataset, None
    if track not in TRACKS:
        raise DataError(f"unknown track {track!r}: choose one of {', '.join(TRACKS)}, or leave out the @")
    return dataset, TRACKS[track]()
