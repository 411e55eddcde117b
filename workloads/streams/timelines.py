"""What a track does to the tables of a stream: which draw a lookup makes, which id holds a rank, and how often.

A stream draws a popularity rank for every lookup. A timeline turns the rank of an instant into an identity: the number
that the row id and the effect on labels come from. Identities of a still table are its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.streams import track_loops
from workloads.streams.draws import to_power
from workloads.streams.tracks import Drift, FlashCrowd, Growth, Recency, Track
from workloads.streams.zipf import RankLaw

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

KEYS = 2
"""Random words that a timeline takes per table."""

GROWTH_STEPS = 1024
"""Steps of equal length in which a vocabulary grows during the training split."""

_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TimedTable:
    """A table as a timeline sees it.

    Attributes:
        law: Distribution of the ranks drawn at any instant.
        pinned: First ranks that keep their identity: 1 where rank 0 stands for a missing value, else 0.
        moves: Whether the table follows the track.
    """

    law: RankLaw
    pinned: int
    moves: bool


class Timeline:
    """Independent draws, the stream without a track. Tracks redefine what they change, for one table at a time.

    Args:
        tables: The tables in order.
        keys: Random words, uint64 `[tables, KEYS]`.
        train_samples: Length of the training split.
    """

    def __init__(self, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        self._tables = tuple(tables)
        self._keys = keys
        self._train_samples = train_samples
        self._moving = [number for number, table in enumerate(tables) if table.moves and self._can_move(table)]

    def redraw(self, uniform: Floats, starts: Ints, samples: Ints) -> None:
        """Replace the uniform numbers that ranks are made from, in place.

        Args:
            uniform: One number per lookup, tables behind one another, float64 `[n]`.
            starts: Where every table's lookups begin, and `n`, int64 `[tables + 1]`.
            samples: Sample of every lookup, counted from the beginning of the training split, int64 `[n]`; it does not
                fall within a table, and lookups of one bag follow one another.
        """
        for table in self._moving:
            part = slice(int(starts[table]), int(starts[table + 1]))
            self._redraw(table, uniform[part], samples[part])

    def identify(self, ranks: Ints, starts: Ints, samples: Ints) -> None:
        """Replace ranks by identities, in place.

        Args:
            ranks: One rank per lookup, tables behind one another, int64 `[n]`.
            starts: As for `redraw`.
            samples: As for `redraw`.
        """
        for table in self._moving:
            part = slice(int(starts[table]), int(starts[table + 1]))
            self._identify(table, ranks[part], samples[part])

    def shares(self, table: int, samples: int) -> Iterator[tuple[int, Floats]]:
        """Expected share of every identity in a table's draws, mean over the first samples of the training split.

        Exact up to rounding, and memory is bounded by chunks.

        Args:
            table: Number of the table.
            samples: Length of the prefix, 1 or more.

        Yields:
            Identities in order: the number of the first, and the shares of those that follow, float64.
        """
        if table in self._moving:
            yield from self._moving_shares(table, samples)
        else:
            yield from _still_shares(self._tables[table].law)

    def _can_move(self, _table: TimedTable) -> bool:
        return False

    def _redraw(self, table: int, uniform: Floats, samples: Ints) -> None:
        """`redraw` for one moving table."""

    def _identify(self, table: int, ranks: Ints, samples: Ints) -> None:
        """`identify` for one moving table."""

    def _moving_shares(self, table: int, _samples: int) -> Iterator[tuple[int, Floats]]:
        """`shares` for one moving table."""
        yield from _still_shares(self._tables[table].law)


class RecencyTimeline(Timeline):
    """Lookups copied from earlier samples; see `Recency`."""

    def __init__(self, track: Recency, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        super().__init__(tables, keys=keys, train_samples=train_samples)
        self._track = track

    def _can_move(self, _table: TimedTable) -> bool:
        return True

    def _redraw(self, table: int, uniform: Floats, samples: Ints) -> None:
        coin, draw = self._keys[table]
        track_loops.copy_recent(samples, coin, draw, self._track.probability, self._track.octaves, uniform)


class DriftTimeline(Timeline):
    """Ids that take turns on popular ranks; see `Drift`.

    With `takers` times `places` ranks, rank `place + depth * places` belongs to one place, and identities
    `place * takers` to `place * takers + takers - 1` rotate over the ranks of their place, one step per lifetime. At
    every instant that is a permutation of the ranks. Ranks that do not fill a row of places keep their identity.
    """

    def __init__(self, track: Drift, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        self._takers = track.takers
        self._lifetime = max(1, round(track.lifetime * train_samples))
        super().__init__(tables, keys=keys, train_samples=train_samples)

    def _can_move(self, table: TimedTable) -> bool:
        return self._places(table) > 0

    def _places(self, table: TimedTable) -> int:
        return (table.law.rows - table.pinned) // self._takers

    def _identify(self, table: int, ranks: Ints, samples: Ints) -> None:
        moved = self._tables[table]
        key = self._keys[table, 0]
        track_loops.hand_over(samples, key, moved.pinned, self._places(moved), self._takers, self._lifetime, ranks)

    def _moving_shares(self, table: int, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned = self._tables[table].law, self._tables[table].pinned
        places, takers = self._places(self._tables[table]), self._takers
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
        yield from _still_shares(law, first=pinned + places * takers)

    def _times(self, table: int, start: int, stop: int, samples: int) -> Iterator[tuple[int, Floats]]:
        """Turns that places have by `samples`, modulo `takers`, with the share of the time that each place is in it."""
        phases = np.empty(stop - start, dtype=np.int64)
        track_loops.phases(self._keys[table, 0], start, self._lifetime, phases)
        times: dict[int, Floats] = {}
        for turn in range((samples - 1 + self._lifetime) // self._lifetime + 1):
            begin = turn * self._lifetime - phases
            spent = np.clip(begin + self._lifetime, 0, samples) - np.clip(begin, 0, samples)
            position = turn % self._takers
            times[position] = times.get(position, 0.0) + spent / samples
        yield from times.items()


class FlashTimeline(Timeline):
    """Crowds at known times; see `FlashCrowd`. Ids of crowds are of the less frequent half of a table."""

    def __init__(self, track: FlashCrowd, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        super().__init__(tables, keys=keys, train_samples=train_samples)
        self._track = track

    def _can_move(self, table: TimedTable) -> bool:
        return table.law.rows > 1

    def crowd(self, table: int, number: int) -> Ints:
        """Identities that crowd `number`, counted from 0, brings to a table, int64 `[ids]`; empty if none comes.

        Its period begins at sample `number * every`.
        """
        rows, key = self._tables[table].law.rows, self._keys[table, 1]
        if table not in self._moving or not track_loops.crowd_comes(key, number, self._track.tables):
            return np.empty(0, dtype=np.int64)
        ids = np.empty(self._track.ids, dtype=np.int64)
        track_loops.crowd_ids(key, number, _rare_from(rows), rows, ids)
        return ids

    def _identify(self, table: int, ranks: Ints, samples: Ints) -> None:
        law, pinned = self._tables[table].law, self._tables[table].pinned
        coin, crowd = self._keys[table]
        every, peak, ids, probability = self._track.every, self._track.peak, self._track.ids, self._track.tables
        track_loops.join_crowds(
            samples, coin, crowd, pinned, _rare_from(law.rows), law.rows, every, peak, ids, probability, ranks
        )

    def _moving_shares(self, table: int, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned = self._tables[table].law, self._tables[table].pinned
        drawn = 1.0 - float(law.probabilities(0, pinned).sum())
        ids, gained = [], []
        for number in range(-(-samples // self._track.every)):
            found = self.crowd(table, number)
            age = samples - number * self._track.every - self._track.every // 4
            ids.append(found)
            gained.append(np.full(found.size, self._taken(age) / samples / self._track.ids))
        taken = float(np.concatenate(gained).sum())
        order = np.argsort(np.concatenate(ids), kind="stable")
        sorted_ids, extra = np.concatenate(ids)[order], np.concatenate(gained)[order] * drawn
        for first, shares in _still_shares(law):
            shares[max(0, pinned - first) :] *= 1.0 - taken
            low, high = np.searchsorted(sorted_ids, [first, first + shares.size])
            np.add.at(shares, sorted_ids[low:high] - first, extra[low:high])
            yield first, shares

    def _taken(self, age: int) -> float:
        """Sum of a crowd's share over its first `age` samples."""
        quarter = self._track.every // 4
        fading = min(max(age - quarter, 0), 2 * quarter)
        steady = min(max(age, 0), quarter)
        return self._track.peak * (steady + fading - fading * (fading - 1) / (4 * quarter))


class GrowthTimeline(Timeline):
    """Ids that come to exist during the training split, in steps of equal length; see `Growth`."""

    def __init__(self, track: Growth, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> None:
        super().__init__(tables, keys=keys, train_samples=train_samples)
        steps = np.arange(GROWTH_STEPS)
        self._begins = -(-steps * train_samples // GROWTH_STEPS)
        existing = track.start + (1.0 - track.start) * steps / (GROWTH_STEPS - 1)
        self._limits = np.minimum(np.rint(existing * 2.0**53), 2.0**53).astype(np.int64)

    def _can_move(self, table: TimedTable) -> bool:
        return table.law.tail_mass > 0

    def _identify(self, table: int, ranks: Ints, samples: Ints) -> None:
        law = self._tables[table].law
        head = len(law.head)
        ends = np.empty(2)
        to_power(np.array([head, law.rows]) + law.shift, np.full(2, law.power), ends)
        track_loops.draw_existing(
            samples, *self._keys[table], head, law.rows, *ends, law.shift, 1.0 / law.power,
            self._begins, self._limits, ranks,
        )  # fmt: skip

    def _moving_shares(self, table: int, samples: int) -> Iterator[tuple[int, Floats]]:
        law = self._tables[table].law
        head = len(law.head)
        appearing = np.zeros(GROWTH_STEPS)
        for first, shares in _still_shares(law, first=head):
            appearing += np.bincount(self._steps(table, first, shares.size), shares, GROWTH_STEPS)
        existing = np.cumsum(appearing)
        ends = np.append(self._begins[1:], self._train_samples)
        time = (np.minimum(ends, samples) - np.minimum(self._begins, samples)) / samples
        gain = np.divide(time * law.tail_mass, existing, out=np.zeros(GROWTH_STEPS), where=existing > 0)
        # An id has its part of every step from the one in which it appears.
        factors = np.cumsum(gain[::-1])[::-1]
        shares = law.probabilities(0, head)
        shares[0] += float((time * law.tail_mass)[existing <= 0].sum())  # nothing behind the head exists yet
        yield 0, shares
        for first, shares in _still_shares(law, first=head):
            yield first, shares * factors[self._steps(table, first, shares.size)]

    def _steps(self, table: int, first: int, count: int) -> Ints:
        """Steps in which ids appear, int64 `[count]`."""
        births = np.empty(count, dtype=np.int64)
        track_loops.births(self._keys[table, 0], first, births)
        return np.searchsorted(self._limits, births, side="right")


def timeline_of(track: Track | None, tables: Sequence[TimedTable], *, keys: Words, train_samples: int) -> Timeline:
    """The timeline of a track on the tables of a stream; arguments as for `Timeline`."""
    match track:
        case Recency():
            return RecencyTimeline(track, tables, keys=keys, train_samples=train_samples)
        case Drift():
            return DriftTimeline(track, tables, keys=keys, train_samples=train_samples)
        case FlashCrowd():
            return FlashTimeline(track, tables, keys=keys, train_samples=train_samples)
        case Growth():
            return GrowthTimeline(track, tables, keys=keys, train_samples=train_samples)
        case None:
            return Timeline(tables, keys=keys, train_samples=train_samples)


def _still_shares(law: RankLaw, *, first: int = 0) -> Iterator[tuple[int, Floats]]:
    for start in range(first, law.rows, _CHUNK):
        yield start, law.probabilities(start, min(law.rows, start + _CHUNK))


def _rare_from(rows: int) -> int:
    """First identity of the less frequent half."""
    return (rows + 1) // 2
