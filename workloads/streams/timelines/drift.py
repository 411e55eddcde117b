"""Ids that take turns on the popular ranks."""

from collections.abc import Iterator, Sequence

import numpy as np

from workloads.compiled import compiled
from workloads.streams.timelines.timeline import (
    CHUNK,
    Floats,
    Ints,
    TimedTable,
    Timeline,
    Words,
    hashed,
    still_shares,
    uniform_of,
)
from workloads.streams.tracks import Drift


class DriftTimeline(Timeline):
    """Ids that take turns on popular ranks; see `Drift`.

    With `takers` times `places` ranks, rank `place + depth * places` belongs to one place, and identities
    `place * takers` to `place * takers + takers - 1` rotate over the ranks of their place, one step per lifetime. At
    every instant that is a permutation of the ranks. Ranks that do not fill a row of places keep their identity.
    """

    def __init__(self, track: Drift, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        self._takers = track.takers
        self._lifetime = max(1, round(track.lifetime * train_samples))
        super().__init__(track, tables, keys=keys, train_samples=train_samples)

    def _can_move(self, table: TimedTable) -> bool:
        return self._places(table) > 0

    def _places(self, table: TimedTable) -> int:
        return (table.law.rows - table.pinned) // self._takers

    def _identify(self, table: int, ranks: Ints, samples: Ints) -> None:
        moved, key = self._tables[table], self._keys[table, 0]
        _hand_over(samples, key, moved.pinned, self._places(moved), self._takers, self._lifetime, ranks)

    def _moving_shares(self, table: int, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned, _ = self._tables[table]
        places, takers = self._places(self._tables[table]), self._takers
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

    def _times(self, table: int, start: int, stop: int, samples: int) -> Iterator[tuple[int, Floats]]:
        """Turns that places have by `samples`, modulo `takers`, with the share of the time that each place is in it."""
        phases = np.empty(stop - start, dtype=np.int64)
        _phases(self._keys[table, 0], start, self._lifetime, phases)
        times: dict[int, Floats] = {}
        for turn in range((samples - 1 + self._lifetime) // self._lifetime + 1):
            begin = turn * self._lifetime - phases
            spent = np.clip(begin + self._lifetime, 0, samples) - np.clip(begin, 0, samples)
            position = turn % self._takers
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
    """How far the first holder of a place is into its lifetime at sample 0, in samples."""
    return np.int64(uniform_of(hashed(key, place, 0)) * lifetime)


@compiled
def _phases(key, first, lifetime, out):
    """`_phase_of` places from `first` on."""
    for i in range(out.size):
        out[i] = _phase_of(key, first + i, lifetime)
