"""Planners without a cache around them, and the stream of the figures: Zipf's law, ranks scrambled over the rows."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from systems.freq_cache import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from workloads.schema import CRITEO_1TB
from workloads.streams.zipf import RankLaw, RankSampler, RankScrambler

EXPONENT = 1.05
"""Exponent of every table's law."""
POLICIES = ("static", "lfu", "lru")
_CHUNK = 1 << 22


class ZipfTables:
    """Tables of so many rows. One id per table and sample; equal seeds give equal streams, and no batch comes twice."""

    def __init__(self, sizes: Sequence[int], *, seed: int = 0) -> None:
        self.sizes = list(sizes)
        self._laws = [_zipf(rows) for rows in self.sizes]
        self._sampler = RankSampler.of(self._laws)
        self._scrambler = RankScrambler.of(self.sizes, generator=np.random.Philox(seed))
        self._generator = np.random.Generator(np.random.Philox(seed + 1))

    def ids(self, samples: int) -> npt.NDArray[np.int64]:
        """The next samples, int64 `[tables, samples]`, each id within its table."""
        uniform = self._generator.random((len(self.sizes), samples))
        starts = np.arange(len(self.sizes) + 1) * samples
        return self._scrambler.ids(self._sampler.ranks(uniform.reshape(-1), starts), starts).reshape(uniform.shape)

    def frequencies(self, accesses: int = 10**9) -> list[Tensor]:
        """Expected accesses per row of every table, int64 `[rows]`, of so many samples."""
        made = []
        for table, law in enumerate(self._laws):
            counts = np.empty(law.rows, np.int64)
            for start in range(0, law.rows, _CHUNK):
                stop = min(start + _CHUNK, law.rows)
                where = self._scrambler.table_ids(table, np.arange(start, stop))
                counts[where] = law.probabilities(start, stop) * accesses
            made.append(torch.from_numpy(counts))
        return made


def criteo_1tb_sizes(rows: int) -> list[int]:
    """The 26 tables of Criteo 1TB, scaled to so many rows in all."""
    published = [size for _, size in CRITEO_1TB.categorical]
    sizes = [max(1, round(size * rows / sum(published))) for size in published]
    sizes[int(np.argmax(sizes))] += rows - sum(sizes)
    return sizes


def ids_of(ids: np.ndarray, sizes: Sequence[int]) -> Ids:
    """Ids `[tables, samples]` as a planner takes them."""
    return Ids(ids.reshape(-1), np.arange(1, len(sizes) + 1) * ids.shape[1], np.cumsum(sizes) - sizes)


def planner_of(policy: str, frequencies: Sequence[np.ndarray], *, ratio: float) -> Planner:
    """A planner that has been warmed up."""
    rows = sum(counts.size for counts in frequencies)
    made: Policy = StaticFrequency(frequencies) if policy == "static" else LFU(rows) if policy == "lfu" else LRU()
    planner = Planner(rows=rows, slots=int(rows * ratio), policy=made)
    planner.warm_up()
    return planner


def _zipf(rows: int) -> RankLaw:
    weights = RankLaw(rows=rows + 1, head=(0.0,), exponent=EXPONENT, shift=0.0).probabilities(1, 2)
    return RankLaw(rows=rows, head=(float(weights[0]) if rows > 1 else 1.0,), exponent=EXPONENT, shift=1.0)
