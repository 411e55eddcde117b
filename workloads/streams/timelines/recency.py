"""Lookups that copy what an earlier sample looked up."""

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
    uniform_of,
)
from workloads.streams.tracks import Recency

MAX_COPIES = 16
"""Copies of copies that a lookup follows back."""

_HIGH_HALF = np.uint64(32)


class RecencyTimeline(Timeline):
    """Lookups copied from earlier samples; see `Recency`."""

    _track: Recency

    def redraw(self, uniform: Floats, samples: Ints) -> None:
        coin, draw = self._keys
        _copy_recent(samples, coin, draw, self._track.probability, self._track.octaves, uniform)


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
