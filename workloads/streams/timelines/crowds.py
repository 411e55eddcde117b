"""Crowds: at known times a few rare ids become hot, then fade."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from workloads.compiled import compiled
from workloads.streams.timelines.timeline import (
    GOLDEN,
    UNIFORM_SHIFT,
    Floats,
    Ints,
    Timeline,
    hashed,
    mixed,
    still_shares,
    uniform_of,
)
from workloads.streams.tracks import FlashCrowd


class _Crowds(NamedTuple):
    """The crowds of one table, for the compiled loop.

    Attributes:
        coin_key, crowd_key: Random words: which lookups join a crowd, and which ids a crowd brings.
        pinned: First ranks that never join.
        rare_from: First rank of the ids that a crowd may bring.
        rows: Rows of the table.
        every, peak, ids, probability: As in `FlashCrowd`, `probability` being its `tables`.
    """

    coin_key: np.uint64
    crowd_key: np.uint64
    pinned: int
    rare_from: int
    rows: int
    every: int
    peak: float
    ids: int
    probability: float


class FlashTimeline(Timeline):
    """Crowds at known times; see `FlashCrowd`. Ids of crowds are of the less frequent half of a table."""

    _track: FlashCrowd

    @cached_property
    def _crowds(self) -> _Crowds:
        (coin_key, crowd_key), track, rows = self._keys, self._track, self._law.rows
        rare_from = (rows + 1) // 2
        return _Crowds(
            coin_key, crowd_key, self._pinned, rare_from, rows, track.every, track.peak, track.ids, track.tables
        )

    def crowd(self, number: int) -> Ints:
        """Identities that crowd `number`, counted from 0, brings to the table, int64 `[ids]`; empty if none comes.

        Its period begins at sample `number * every`.
        """
        ids = np.empty(self._track.ids if _crowd_comes(self._crowds, number) else 0, dtype=np.int64)
        _crowd_ids(self._crowds, number, ids)
        return ids

    def identify(self, ranks: Ints, samples: Ints) -> None:
        _join_crowds(samples, self._crowds, ranks)

    def shares(self, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned = self._law, self._pinned
        drawn = 1.0 - float(law.probabilities(0, pinned).sum())
        ids, gained = [], []
        for number in range(-(-samples // self._track.every)):
            found = self.crowd(number)
            age = samples - number * self._track.every - self._track.every // 4
            ids.append(found)
            gained.append(np.full(found.size, self._taken(age) / samples / self._track.ids))
        taken = float(np.concatenate(gained).sum())
        order = np.argsort(np.concatenate(ids), kind="stable")
        sorted_ids, extra = np.concatenate(ids)[order], np.concatenate(gained)[order] * drawn
        for first, shares in still_shares(law):
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


@compiled
def _crowd_comes(crowds, number):
    """Whether crowd `number` concerns the table."""
    return uniform_of(hashed(crowds.crowd_key, number, 0)) < crowds.probability


@compiled
def _crowd_id(crowds, number, place):
    """One id of a crowd: one of the rare ones."""
    word = hashed(crowds.crowd_key, number, place + 1) >> UNIFORM_SHIFT
    return crowds.rare_from + np.int64(word) % (crowds.rows - crowds.rare_from)


@compiled
def _crowd_ids(crowds, number, out):
    """All ids of a crowd, with repetitions where the hash has them."""
    for place in range(out.size):
        out[place] = _crowd_id(crowds, number, place)


@compiled
def _join_crowds(samples, crowds, ranks):
    """Send lookups to the ids of the crowd of their time."""
    last, lookup = np.int64(-1), np.int64(0)
    number, comes = np.int64(-1), False
    quarter = crowds.every // 4
    for i in range(samples.size):
        sample = samples[i]
        lookup = np.int64(lookup + 1 if sample == last else 0)
        last = sample
        if number < 0 or sample // crowds.every != number:
            number = sample // crowds.every
            comes = _crowd_comes(crowds, number)
        age = sample - number * crowds.every - quarter
        if not comes or age < 0 or ranks[i] < crowds.pinned:
            continue
        share = crowds.peak if age < quarter else crowds.peak * (3 * quarter - age) / (2 * quarter)
        word = hashed(crowds.coin_key, sample, lookup)
        if uniform_of(word) < share:
            place = np.int64(mixed(word + GOLDEN) >> UNIFORM_SHIFT) % crowds.ids
            ranks[i] = _crowd_id(crowds, number, place)
