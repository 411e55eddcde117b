"""The compiled loops of the synthetic streams: random words to ranks and bags, ranks to row ids and effects on labels.

Flat arrays of lookups hold one table after another, in a table one sample after another, in a bag one id after another.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Singles = NDArray[np.float32]

ROUNDS = 3
"""Rounds of a permutation of ranks."""
_LN2, _LOG2E = 0.6931471805599453, 1.4426950408889634
_ROUND = 1.5 * 2.0**52  # added to a small float64, it leaves the nearest whole number in the low bits
_SQRT2_BITS = 0x3FF6A09E667F3BCD
_BLOCK = 1024  # numbers that stay in the processor's first cache while a few loops pass over them
_BAGS = 256
# The finaliser of SplitMix64 (Steele, Lea and Flood 2014), one round short: 53 even bits are enough here.
_HASH_SHIFT = np.uint64(30)
_HASH_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_RANK_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the machine code beside the source where that can be written.

    Arithmetic is IEEE's, operation by operation, so that values are the same on every machine: nothing is reordered,
    and no product is merged with a sum. The loop runs on the calling thread and does not hold the GIL.

    It may call loops of its own file only: kept code holds copies of them, and numba looks for changes nowhere else.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write: compiled anew in every process
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


@compiled
def power(base, exponent):
    """`base ** exponent` from additions, multiplications and one division, hence the same bits on every machine.

    The libraries' power differs in the last bit from one machine to another. The base must be a positive normal number
    and the result one too. Relative error below `1e-15 * (1 + |log2 of the result|)`: both series are cut where the
    next term is below 1e-16.
    """
    bits = np.float64(base).view(np.int64)
    # base = 2 ** whole * part, the part between the square roots of 1/2 and 2
    whole = (bits - _SQRT2_BITS >> 52) + 1
    part = np.int64(bits - (whole << 52)).view(np.float64)
    f = (part - 1.0) / (part + 1.0)
    s = f * f
    # log(part) = 2 atanh(f)
    series = 1.0 / 21.0
    series = series * s + 1.0 / 19.0
    series = series * s + 1.0 / 17.0
    series = series * s + 1.0 / 15.0
    series = series * s + 1.0 / 13.0
    series = series * s + 1.0 / 11.0
    series = series * s + 1.0 / 9.0
    series = series * s + 1.0 / 7.0
    series = series * s + 1.0 / 5.0
    series = series * s + 1.0 / 3.0
    log2 = whole + (2.0 * f + 2.0 * f * s * series) * _LOG2E
    target = exponent * log2
    rounded = target + _ROUND
    x = (target - (rounded - _ROUND)) * _LN2
    series = 1.0 / 6227020800.0
    series = series * x + 1.0 / 479001600.0
    series = series * x + 1.0 / 39916800.0
    series = series * x + 1.0 / 3628800.0
    series = series * x + 1.0 / 362880.0
    series = series * x + 1.0 / 40320.0
    series = series * x + 1.0 / 5040.0
    series = series * x + 1.0 / 720.0
    series = series * x + 1.0 / 120.0
    series = series * x + 1.0 / 24.0
    series = series * x + 1.0 / 6.0
    series = series * x + 0.5
    series = series * x + 1.0
    series = series * x + 1.0
    result = np.float64(series).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    return np.int64(result).view(np.float64)


@compiled
def to_uniform(words, uniform):
    """Words as float64 in [0, 1), both flat."""
    for i in range(words.size):
        uniform[i] = np.int64(words[i] >> np.uint64(11)) * 2.0**-53


@compiled
def to_ranks(uniform, starts, tables, ranks):
    """Invert every table's distribution; `tables` is a `RankSampler`."""
    first, last = tables.first, tables.last
    positions = np.empty(_BLOCK)
    for t in range(starts.size - 1):
        for start in range(starts[t], starts[t + 1], _BLOCK):
            stop = min(start + _BLOCK, starts[t + 1])
            u, found = uniform[start:stop], ranks[start:stop]
            _tail_positions(u, tables.low[t], tables.slope[t], tables.head_mass[t], positions)
            _tail_ranks(positions, tables.inverse_power[t], tables.shift[t], first[t], last[t], found)
            for head in range(first[t] - 1, -1, -1):
                _head_rank(u, head, tables.borders[t, head], found)


# Apart from the next: the compiler would turn the maximum into a branch around the power.
@compiled
def _tail_positions(uniform, low, slope, head_mass, positions):
    for i in range(uniform.size):
        positions[i] = max(uniform[i] - head_mass, 0.0) * slope + low


@compiled
def _tail_ranks(positions, inverse_power, shift, first, last, ranks):
    for i in range(ranks.size):
        rank = np.int64(power(positions[i], inverse_power) - shift)
        # Rounding at either end of the power may leave the tail by one rank.
        ranks[i] = min(max(rank, first), last)


@compiled
def _head_rank(uniform, rank, border, ranks):
    for i in range(ranks.size):
        ranks[i] = rank if uniform[i] < border else ranks[i]


@compiled
def _mix(word, multipliers, offsets, mask, shift):
    # The offsets keep 0, the most frequent rank of every table, from being a fixed point.
    for turn in range(ROUNDS):
        word = ((word + offsets[turn]) * multipliers[turn]) & mask
        word ^= word >> shift
    return word


@compiled
def scramble(ranks, starts, mixers, ids):
    """Row ids of ranks, table after table; `mixers` is a `RankScrambler`."""
    multipliers, offsets, mask, shift = mixers.multipliers, mixers.offsets, mixers.mask, mixers.shift
    astray = np.empty(_BLOCK, np.int64)
    for t in range(starts.size - 1):
        for start in range(starts[t], starts[t + 1], _BLOCK):
            stop = min(start + _BLOCK, starts[t + 1])
            found = ids[start:stop]
            _mix_all(ranks[start:stop], multipliers[t], offsets[t], mask[t], shift[t], found)
            _walk(mixers.rows[t], multipliers[t], offsets[t], mask[t], shift[t], found, astray)


@compiled
def _mix_all(ranks, multipliers, offsets, mask, shift, ids):
    for i in range(ids.size):
        ids[i] = _mix(np.uint64(ranks[i]), multipliers, offsets, mask, shift)


@compiled
def _walk(rows, multipliers, offsets, mask, shift, ids, astray):
    # What is astray goes into a list without a branch: the processor would guess wrong for a third of the ids.
    count = 0
    for i in range(ids.size):
        astray[count] = i
        count += np.uint64(ids[i]) >= rows
    while count > 0:
        left = 0
        for j in range(count):
            i = astray[j]
            word = _mix(np.uint64(ids[i]), multipliers, offsets, mask, shift)
            ids[i] = word
            astray[left] = i
            left += word >= rows
        count = left


@compiled
def to_dense(words, coins, missing, scale, mean, features):
    """Dense `features`, `[columns, n]`, from `words`, uint16 `[4, columns, n]`, and `coins`, in [0, 1), float64 `[n]`.

    `missing` has a word for each of equal parts of [0, 1): a bit per column whose value is 0 there. `scale` applies to
    the sum of four words around its mean. See `DenseSampler`.
    """
    columns, samples = features.shape
    absent = np.empty(_BLOCK, missing.dtype)
    for start in range(0, samples, _BLOCK):
        stop = min(start + _BLOCK, samples)
        for i in range(stop - start):
            absent[i] = missing[np.int64(coins[start + i] * missing.size)]
        for c in range(columns):
            values = features[c, start:stop]
            first, second = words[0, c, start:stop], words[1, c, start:stop]
            third, fourth = words[2, c, start:stop], words[3, c, start:stop]
            _to_values((first, second, third, fourth), absent, np.uint32(1 << c), scale[c], mean[c], values)


@compiled
def _to_values(lanes, absent, column, scale, mean, values):
    first, second, third, fourth = lanes
    for i in range(values.size):
        total = np.int32(first[i]) + np.int32(second[i]) + np.int32(third[i]) + np.int32(fourth[i])
        value = np.float32(np.float32(total - 131070) * scale) + mean
        present = ((absent[i] & column) == 0) & (value > np.float32(0.0))
        values[i] = value if present else np.float32(0.0)


@compiled
def sum_effects(ranks, offsets, keys, half_rank, total):
    """Add the mean effect of every bag's ids to its sample in `total`, `[n]`; an empty bag adds nothing.

    See `PlantedModel`. Ranks are flat, `offsets` say where the bags begin: by table, then by sample.
    """
    samples = total.size
    for t in range(keys.size):
        for sample in range(0, samples, _BAGS):
            stop = min(sample + _BAGS, samples)
            first, last = offsets[t * samples + sample], offsets[t * samples + stop]
            effects = np.empty(last - first)
            _to_effects(ranks[first:last], keys[t], half_rank, effects)
            for i in range(sample, stop):
                start, end = offsets[t * samples + i], offsets[t * samples + i + 1]
                in_bag = 0.0
                for place in range(start, end):
                    in_bag += effects[place - first]
                if end > start:
                    total[i] += in_bag / (end - start)


@compiled
def _to_effects(ranks, key, half_rank, effects):
    for i in range(ranks.size):
        word = np.uint64(ranks[i]) * _RANK_FACTOR + key
        word = (word ^ (word >> _HASH_SHIFT)) * _HASH_FACTOR
        effects[i] = np.int64(word) * 2.0**-63 / (ranks[i] * (1.0 / half_rank) + 1.0)
