"""Temporal structure of synthetic streams, as named tracks: `criteo_kaggle@drift`, `avazu@growth`.

Without a track the samples of a stream are independent draws from one law. A track says how the stream depends on time.
Time is the number of a sample: it is 0 at the beginning of the training split, and goes on through validation and test.
Tables of at least `MOVING_ROWS` published rows follow the track, smaller ones do not change, and neither does the id
that stands for a missing value. What the figures of the tracks rest on is in docs/synthetic.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from workloads import DataError
from workloads.streams.draws import Floats, Ints, compiled, tail_rank
from workloads.streams.track import (
    CHUNK,
    GOLDEN,
    UNIFORM_SHIFT,
    Table,
    Track,
    hashed,
    mixed,
    still_shares,
    uniform_of,
)

MOVING_ROWS = 1000
"""Published rows from which a table follows a track."""

GROWTH_STEPS = 1024
"""Steps of equal length in which a vocabulary grows during the training split."""

MAX_REDRAWS = 256
"""Draws after which the search for an id that exists is given up for rank 0; its chance is below `0.75 ** 256`."""


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


class _GrowingTable(NamedTuple):
    """The vocabulary of one table, for the compiled loop.

    Attributes:
        birth_key, redraw_key: Random words: when ids appear, and what is drawn in the place of those that do not exist.
        head: Ranks that exist from the beginning.
        rows: Rows of the table.
        low, high: Ends of the tail's power, `(rank + shift) ** power` at `head` and at `rows`.
        shift, inverse_power: Of the law.
        begins: First sample of every step, int64 `[GROWTH_STEPS]`.
        limits: In a step those ids exist whose birth is below its limit, int64 `[GROWTH_STEPS]`.
    """

    birth_key: np.uint64
    redraw_key: np.uint64
    head: int
    rows: int
    low: float
    high: float
    shift: float
    inverse_power: float
    begins: Ints
    limits: Ints


@dataclass(frozen=True, kw_only=True)
class Growth(Track):
    """New ids keep appearing: of the rare ones a share `start` exists when training begins, all when it ends.

    Ids appear in an order that has nothing to do with their frequency, at a constant rate of `(1 - start) * rare ids /
    training samples` per table and sample. An id that does not exist yet is never drawn; its share goes to the rare ids
    that do, in proportion. The heavy hitters of a table, the explicit head of its law, exist from the beginning.
    """

    name: ClassVar[str] = "growth"
    start: float = 0.5

    def identify(self, table: Table, ranks: Ints, samples: Ints) -> None:
        _draw_existing(samples, _growing(self.start, table), ranks)

    def shares(self, table: Table, samples: int) -> Iterator[tuple[int, Floats]]:
        law, growing, head = table.law, _growing(self.start, table), len(table.law.head)
        begins = growing.begins
        appearing = np.zeros(GROWTH_STEPS)
        for first, shares in still_shares(law, first=head):
            appearing += np.bincount(_steps(growing, first, shares.size), shares, GROWTH_STEPS)
        existing = np.cumsum(appearing)
        ends = np.append(begins[1:], table.train_samples)
        time = (np.minimum(ends, samples) - np.minimum(begins, samples)) / samples
        gain = np.divide(time * law.tail_mass, existing, out=np.zeros(GROWTH_STEPS), where=existing > 0)
        # An id has its part of every step from the one in which it appears.
        factors = np.cumsum(gain[::-1])[::-1]
        shares = law.probabilities(0, head)
        shares[0] += float((time * law.tail_mass)[existing <= 0].sum())  # nothing behind the head exists yet
        yield 0, shares
        for first, shares in still_shares(law, first=head):
            yield first, shares * factors[_steps(growing, first, shares.size)]


def _steps(growing: _GrowingTable, first: int, count: int) -> Ints:
    """Steps in which ids appear, int64 `[count]`."""
    births = np.empty(count, dtype=np.int64)
    _births(growing.birth_key, first, births)
    return np.searchsorted(growing.limits, births, side="right")


@lru_cache(maxsize=256)  # of the tables of a few streams
def _growing(start: float, table: Table) -> _GrowingTable:
    (birth_key, redraw_key), law, head = table.keys, table.law, len(table.law.head)
    low, high = law.tail_ends
    begins, limits = _calendar(start, table.train_samples)
    return _GrowingTable(
        birth_key=birth_key,
        redraw_key=redraw_key,
        head=head,
        rows=law.rows,
        low=low,
        high=high,
        shift=law.shift,
        inverse_power=1.0 / law.power,
        begins=begins,
        limits=limits,
    )


@cache
def _calendar(start: float, train_samples: int) -> tuple[Ints, Ints]:
    """`begins` and `limits` of a `_GrowingTable`."""
    steps = np.arange(GROWTH_STEPS)
    existing = start + (1.0 - start) * steps / (GROWTH_STEPS - 1)
    limits = np.minimum(np.rint(existing * 2.0**53), 2.0**53).astype(np.int64)
    return -(-steps * train_samples // GROWTH_STEPS), limits


@compiled
def _birth_of(key, rank):
    """When an id comes to exist: a whole number below `2 ** 53`, to be compared with the limits of the steps."""
    return np.int64(hashed(key, rank, 0) >> UNIFORM_SHIFT)


@compiled
def _births(key, first, out):
    """`_birth_of` ranks from `first` on."""
    for i in range(out.size):
        out[i] = _birth_of(key, first + i)


@compiled
def _draw_existing(samples, growing, ranks):
    """Draw ranks behind the head again, from the same law, until the id exists."""
    last, lookup = np.int64(-1), np.int64(0)
    step = 0
    for i in range(samples.size):
        sample = samples[i]
        lookup = np.int64(lookup + 1 if sample == last else 0)
        last = sample
        rank = ranks[i]
        if rank < growing.head:
            continue
        if step + 1 < growing.begins.size and sample >= growing.begins[step + 1]:
            step = np.searchsorted(growing.begins, sample, side="right") - 1
        limit = growing.limits[step]
        if _birth_of(growing.birth_key, rank) < limit:
            continue
        word = hashed(growing.redraw_key, sample, lookup)
        for _ in range(MAX_REDRAWS):
            word = mixed(word + GOLDEN)
            position = growing.low + uniform_of(word) * (growing.high - growing.low)
            rank = tail_rank(position, growing.inverse_power, growing.shift, growing.head, growing.rows - 1)
            if _birth_of(growing.birth_key, rank) < limit:
                break
        ranks[i] = rank if _birth_of(growing.birth_key, rank) < limit else 0


TRACKS: Mapping[str, type[Track]] = {track.name: track for track in (Drift, Growth)}


def split_name(name: str) -> tuple[str, Track | None]:
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
