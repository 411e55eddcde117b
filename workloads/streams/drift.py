"""Ids that take turns on the popular ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.streams.draws import Floats, Ints, compiled
from workloads.streams.track import (
    CHUNK,
    Table,
    Track,
    hashed,
    still_shares,
    uniform_of,
)


@dataclass(frozen=True, kw_only=True)
class Drift(Track):
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
        places, lifetime = self._places(table), self._samples(table)
        _hand_over(samples, table.keys[0], table.pinned, places, self.takers, lifetime, ranks)

    def shares(self, table: Table, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned, places, takers = table.law, table.pinned, self._places(table), self.takers
        if pinned:
            yield 0, law.probabilities(0, pinned)
        chunk = max(1, CHUNK // takers)
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
        _phases(table.keys[0], start, lifetime, phases)
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
    """Age of the first holder of a place at sample 0, in samples."""
    return np.int64(uniform_of(hashed(key, place, 0)) * lifetime)


@compiled
def _phases(key, first, lifetime, out):
    """`_phase_of` places from `first` on."""
    for i in range(out.size):
        out[i] = _phase_of(key, first + i, lifetime)
