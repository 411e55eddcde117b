"""The compiled loops of the temporal tracks. Each treats the lookups of one table, in place.

Random words are a hash of the key, the sample and the lookup's number in its bag, so that any lookup's draw can be
made again from these alone. A lookup's number is counted in the loop: lookups of one bag follow one another.
"""

from __future__ import annotations

import numpy as np

from workloads.compiled import compiled
from workloads.streams.draws import power

MAX_COPIES = 16
"""Copies of copies that a lookup follows back."""
MAX_REDRAWS = 256
"""Draws after which an id that exists is given up for rank 0; below `0.75 ** 256`."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOOKUP = np.uint64(0xD1342543DE82EF95)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_UNIFORM_SHIFT = np.uint64(11)
_HIGH_HALF = np.uint64(32)


@compiled
def mixed(word):
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): one to one, every bit depends on every bit."""
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2
    return word ^ (word >> _SHIFT_3)


@compiled
def hashed(key, number, lookup):
    """A random word of its own for every sample (or rank, or event) and lookup."""
    return mixed(key + np.uint64(number) * _GOLDEN + np.uint64(lookup) * _LOOKUP)


@compiled
def uniform_of(word):
    """A word as float64 in [0, 1)."""
    return np.int64(word >> _UNIFORM_SHIFT) * 2.0**-53


@compiled
def copy_recent(samples, coin_key, draw_key, probability, octaves, uniform):
    """Replace uniform numbers by draws of their own or of earlier samples.

    The draw of a sample is a hash, so that it is made again rather than kept. Where it copies itself, the copy is
    followed back, as often as `MAX_COPIES` times.
    """
    last, lookup = np.int64(-1), np.int64(0)
    for i in range(samples.size):
        sample = samples[i]
        lookup = np.int64(lookup + 1 if sample == last else 0)
        last = sample
        source = sample
        for _ in range(MAX_COPIES):
            word = hashed(coin_key, source, lookup)
            if uniform_of(word) >= probability:
                break
            word = mixed(word + _GOLDEN)
            octave = np.int64(word >> _HIGH_HALF) % octaves
            distance = (1 << octave) + (np.int64(mixed(word) >> _UNIFORM_SHIFT) & ((1 << octave) - 1))
            if distance > source:
                break
            source -= distance
        uniform[i] = uniform_of(hashed(draw_key, source, lookup))


@compiled
def hand_over(samples, key, pinned, places, takers, lifetime, ranks):
    """Replace popularity ranks by the ids that hold them; see `phase_of` for when a place changes hands."""
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
        turn = turns + (age + phase_of(key, place, lifetime) >= lifetime)
        ranks[i] = pinned + place * takers + (depth - turn) % takers


@compiled
def phase_of(key, place, lifetime):
    """How far the first holder of a place is into its lifetime at sample 0, in samples."""
    return np.int64(uniform_of(hashed(key, place, 0)) * lifetime)


@compiled
def phases(key, first, lifetime, out):
    """`phase_of` places from `first` on."""
    for i in range(out.size):
        out[i] = phase_of(key, first + i, lifetime)


@compiled
def flash_id(key, crowd, number, first, rows):
    """Id of a crowd: one of the `rows - first` rare ones."""
    return first + np.int64(hashed(key, crowd, number + 1) >> _UNIFORM_SHIFT) % (rows - first)


@compiled
def crowd_comes(key, crowd, probability):
    """Whether a crowd concerns the table of this key."""
    return uniform_of(hashed(key, crowd, 0)) < probability


@compiled
def crowd_ids(key, crowd, first, rows, out):
    """All ids of a crowd, with repetitions where the hash has them."""
    for i in range(out.size):
        out[i] = flash_id(key, crowd, i, first, rows)


@compiled
def join_crowds(samples, coin_key, crowd_key, pinned, first, rows, every, peak, ids, probability, ranks):
    """Send lookups to the ids of the crowd of their time."""
    last, lookup = np.int64(-1), np.int64(0)
    crowd, comes = np.int64(-1), False
    quarter = every // 4
    for i in range(samples.size):
        sample = samples[i]
        lookup = np.int64(lookup + 1 if sample == last else 0)
        last = sample
        if crowd < 0 or sample // every != crowd:
            crowd = sample // every
            comes = crowd_comes(crowd_key, crowd, probability)
        age = sample - crowd * every - quarter
        if not comes or age < 0 or ranks[i] < pinned:
            continue
        share = peak if age < quarter else peak * (3 * quarter - age) / (2 * quarter)
        word = hashed(coin_key, sample, lookup)
        if uniform_of(word) < share:
            number = np.int64(mixed(word + _GOLDEN) >> _UNIFORM_SHIFT) % ids
            ranks[i] = flash_id(crowd_key, crowd, number, first, rows)


@compiled
def birth_of(key, rank):
    """When an id comes to exist: a whole number below `2 ** 53`, to be held against the limits of the steps."""
    return np.int64(hashed(key, rank, 0) >> _UNIFORM_SHIFT)


@compiled
def births(key, first, out):
    """`birth_of` ranks from `first` on."""
    for i in range(out.size):
        out[i] = birth_of(key, first + i)


@compiled
def draw_existing(samples, key, redraw_key, head, rows, low, high, shift, inverse_power, begins, limits, ranks):
    """Draw ranks behind the head again, from the same law, until the id exists.

    In step g, from sample `begins[g]` on, the ids exist whose birth is below `limits[g]`.
    """
    last, lookup = np.int64(-1), np.int64(0)
    step = 0
    for i in range(samples.size):
        sample = samples[i]
        lookup = np.int64(lookup + 1 if sample == last else 0)
        last = sample
        rank = ranks[i]
        if rank < head:
            continue
        if step + 1 < begins.size and sample >= begins[step + 1]:
            step = np.searchsorted(begins, sample, side="right") - 1
        limit = limits[step]
        if birth_of(key, rank) < limit:
            continue
        word = hashed(redraw_key, sample, lookup)
        for _ in range(MAX_REDRAWS):
            word = mixed(word + _GOLDEN)
            position = low + uniform_of(word) * (high - low)
            rank = min(max(np.int64(power(position, inverse_power) - shift), head), rows - 1)
            if birth_of(key, rank) < limit:
                break
        ranks[i] = rank if birth_of(key, rank) < limit else 0
