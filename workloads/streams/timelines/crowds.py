"""Crowds: at known times a few rare ids become hot, then fade."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from workloads.compiled import compiled
from workloads.errors import DataError
from workloads.streams.timelines.track import (
    GOLDEN,
    UNIFORM_SHIFT,
    Floats,
    Ints,
    Table,
    Track,
    hashed,
    mixed,
    parameter,
    still_shares,
    uniform_of,
)


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


@dataclass(frozen=True, kw_only=True)
class FlashCrowd(Track):
    """At known times a few rare ids become hot for a while, then fade.

    Time is cut into periods of `every` samples, a multiple of 4. After a quiet quarter of a period a crowd comes to
    each large table with probability `tables`: for a quarter of the period a share `peak` of the table's lookups goes
    to `ids` rare ids, chosen anew for every crowd, then the share falls in a straight line to 0 at the end. The other
    lookups follow the law. The rare ids are the less frequent half of a table.
    """

    name: ClassVar[str] = "flash"
    every: int = parameter(1 << 19, 1 << 10, 1 << 40)
    peak: float = parameter(0.15, 0.0, 1.0)
    ids: int = parameter(256, 1, 1 << 20)
    tables: float = parameter(0.5, 0.0, 1.0)

    def __post_init__(self) -> None:
        """Check the parameters, and that a period has four quarters."""
        super().__post_init__()
        if self.every % 4:
            raise DataError(f"every of @{self.name} is {self.every}: give a multiple of 4, a crowd has four quarters")

    def _crowds(self, table: Table) -> _Crowds:
        coin_key, crowd_key = table.keys
        rows = table.law.rows
        return _Crowds(
            coin_key=coin_key,
            crowd_key=crowd_key,
            pinned=table.pinned,
            rare_from=(rows + 1) // 2,
            rows=rows,
            every=self.every,
            peak=self.peak,
            ids=self.ids,
            probability=self.tables,
        )

    def crowd(self, table: Table, number: int) -> Ints:
        """Identities that crowd `number`, counted from 0, brings to the table, int64 `[ids]`; empty if none comes.

        Its period begins at sample `number * every`.
        """
        crowds = self._crowds(table)
        ids = np.empty(self.ids if _crowd_comes(crowds, number) else 0, dtype=np.int64)
        _crowd_ids(crowds, number, ids)
        return ids

    def identify(self, table: Table, ranks: Ints, samples: Ints) -> None:
        _join_crowds(samples, self._crowds(table), ranks)

    def shares(self, table: Table, samples: int) -> Iterator[tuple[int, Floats]]:
        law, pinned = table.law, table.pinned
        drawn = 1.0 - float(law.probabilities(0, pinned).sum())
        ids, gained = [], []
        for number in range(-(-samples // self.every)):
            found = self.crowd(table, number)
            age = samples - number * self.every - self.every // 4
            ids.append(found)
            gained.append(np.full(found.size, self._taken(age) / samples / self.ids))
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
        quarter = self.every // 4
        fading = min(max(age - quarter, 0), 2 * quarter)
        steady = min(max(age, 0), quarter)
        return self.peak * (steady + fading - fading * (fading - 1) / (4 * quarter))


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
