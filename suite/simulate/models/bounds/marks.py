"""A set of numbers of which the highest is found in a few steps: 64 bits, one each, are under one of the next level."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import bit_length, compiled

_BITS = 6
_WITHIN = (1 << _BITS) - 1


class Marks(NamedTuple):
    """Words of all levels, int64, one level behind the other, and where each begins, int64 `[levels]`."""

    words: NDArray[np.int64]
    begins: NDArray[np.int64]


def no_marks(numbers: int) -> Marks:
    """An empty set, with room for numbers from 0 to below `numbers`. Memory: an eighth of a byte each."""
    sizes = [-(-numbers >> _BITS)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] >> _BITS))
    begins = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    return Marks(np.zeros(sum(sizes), np.int64), begins)


@compiled
def mark(marks, number):
    """Have a number in the set."""
    for level in range(marks.begins.size):
        at = marks.begins[level] + (number >> _BITS)
        before = marks.words[at]
        marks.words[at] = before | (np.int64(1) << (number & _WITHIN))
        if before:
            return
        number >>= _BITS


@compiled
def unmark(marks, number):
    """Take a number out of the set."""
    for level in range(marks.begins.size):
        at = marks.begins[level] + (number >> _BITS)
        marks.words[at] &= ~(np.int64(1) << (number & _WITHIN))
        if marks.words[at]:
            return
        number >>= _BITS


@compiled
def highest(marks):
    """The highest number of a set that is not empty."""
    number = np.int64(0)
    for level in range(marks.begins.size - 1, -1, -1):
        number = (number << _BITS) + bit_length(marks.words[marks.begins[level] + number]) - 1
    return number
