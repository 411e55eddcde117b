"""A track that changes nothing, and what every track has to say: identities, and how often each identity comes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.streams.draws import Floats, Ints, Words, compiled
from workloads.streams.zipf import RankLaw

KEYS = 2
"""Random words that a track takes for a table."""

CHUNK = 1 << 16
"""Ranks whose shares are worked out at a time."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a stream.

    Attributes:
        law: Distribution of the ranks drawn at any instant.
        pinned: First ranks that keep their identity: 1 where rank 0 stands for a missing value, else 0.
        keys: Random words, uint64 `[KEYS]`.
        train_samples: Length of the training split.
    """

    law: RankLaw
    pinned: int
    keys: Words
    train_samples: int


@dataclass(frozen=True, kw_only=True)
class Track:
    """Dependence of a stream on time. This one has none: the stream does not change."""

    name: ClassVar[str]

    def identify(self, table: Table, ranks: Ints, samples: Ints) -> None:
        """Replace ranks by identities, in place.

        Args:
            table: The table.
            ranks: Of every lookup, int64 `[n]`.
            samples: Sample of every lookup, from the beginning of the training split, int64 `[n]`; ascending, and
                lookups of one bag follow one another.
        """

    def shares(self, table: Table, _samples: int) -> Iterator[tuple[int, Floats]]:
        """Expected share of every identity in the draws, mean over the first samples of the training split.

        Exact up to rounding, chunk by chunk: the first identity, and the shares of those from it on, float64.
        """
        yield from still_shares(table.law)


def still_shares(law: RankLaw, *, first: int = 0) -> Iterator[tuple[int, Floats]]:
    """Shares of the ranks from `first` on by the law alone, in chunks: the first rank of each, and float64 shares."""
    for start in range(first, law.rows, CHUNK):
        yield start, law.probabilities(start, min(law.rows, start + CHUNK))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Added to a word before `mixed` makes the next one of it."""
UNIFORM_SHIFT = np.uint64(11)
"""A word shifted to the right by this many bits is a whole number below `2 ** 53`."""

_LOOKUP = np.uint64(0xD1342543DE82EF95)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


@compiled
def mixed(word):
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): one to one, every bit depends on every bit."""
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2
    return word ^ (word >> _SHIFT_3)


@compiled
def hashed(key, number, lookup):
    """A random word of its own for every sample (or rank) and lookup."""
    return mixed(key + np.uint64(number) * GOLDEN + np.uint64(lookup) * _LOOKUP)


@compiled
def uniform_of(word):
    """A word as float64 in [0, 1)."""
    return np.int64(word >> UNIFORM_SHIFT) * 2.0**-53
