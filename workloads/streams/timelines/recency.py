"""Lookups that copy what an earlier sample looked up."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.compiled import compiled
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
    uniform_of,
)

MAX_COPIES = 16
"""Copies of copies that a lookup follows back."""

_HIGH_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class Recency(Track):
    """Ids come back sooner than by chance: some are copied from an earlier sample of the stream.

    A lookup copies with `probability`. The number of samples back is log-uniform, `2 ** octaves` at most. What is
    copied may be a copy itself; which ids are frequent does not change. The first samples have nothing to copy.
    """

    name: ClassVar[str] = "recency"
    probability: float = parameter(0.1, 0.0, 0.9)
    octaves: int = parameter(20, 1, 40)

    def redraw(self, table: Table, uniform: Floats, samples: Ints) -> None:
        coin, draw = table.keys
        _copy_recent(samples, coin, draw, self.probability, self.octaves, uniform)


@compiled
def _copy_recent(samples, coin_key, draw_key, probability, octaves, uniform):
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
            word = mixed(word + GOLDEN)
            octave = np.int64(word >> _HIGH_HALF) % octaves
            distance = (1 << octave) + (np.int64(mixed(word) >> UNIFORM_SHIFT) & ((1 << octave) - 1))
            if distance > source:
                break
            source -= distance
        uniform[i] = uniform_of(hashed(draw_key, source, lookup))
