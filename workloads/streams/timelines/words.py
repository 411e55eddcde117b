"""Random words for tracks: a hash of a key, a sample and a lookup, so that any draw can be made again from these alone.

A lookup's number is its place in its bag. The loops count it: lookups of one bag follow one another.
"""

from __future__ import annotations

import numpy as np

from workloads.compiled import compiled

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
    """A random word of its own for every sample (or rank, or crowd) and lookup."""
    return mixed(key + np.uint64(number) * GOLDEN + np.uint64(lookup) * _LOOKUP)


@compiled
def uniform_of(word):
    """A word as float64 in [0, 1)."""
    return np.int64(word >> UNIFORM_SHIFT) * 2.0**-53
