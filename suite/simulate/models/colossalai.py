"""The cache of ColossalAI's CachedEmbedding, by frequency of the dataset or by use.

Source: hpcaitech/ColossalAI colossalai/legacy/nn/parallel/layers/cache_embedding/cache_mgr.py;
hpcaitech/CachedEmbedding recsys/dlrm_main.py; arXiv 2208.05321.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.fae import ranks
from suite.simulate.models.model import CacheModel, CannotReplay, Setting, Tally
from suite.simulate.trace import Seen

_WARM_SHARE = 0.7
"""Share of the slots filled before the first batch; its `warmup_ratio`."""

_ABSENT = -1
_MOST = 2**32 - 1


class ColossalAIModel(CacheModel):
    """CachedEmbedding as published: one cache for all tables, every missing row enters, every leaving row is written.

    The distinct rows of a batch must be resident together: if they are more than the slots an assertion fails, here
    `CannotReplay`. None of them leaves for another. Before the first batch 70 % of the slots (rounded up) are filled
    with the most frequent rows, as with `--use_freq`; only then can `dataset` rank at all.

    - `dataset`: rows are ranked by falling frequency, and the resident rows of the largest ranks leave. torch sorts
      equal frequencies as it likes; here the lower row ranks first.
    - `lfu`: every slot counts accesses. A warmed-up one starts at its row's frequency, one filled later at 0; then
      every batch adds how often each of its rows occurs in it, the one that fills the slot included. Slots of the least
      counts are emptied; torch leaves open which of equals, here the lowest slots, as top-k on CUDA takes them in
      order. The missing rows take the lowest empty slots in ascending order. What was counted of a row is lost when it
      leaves.

    It has no dirty bit: what was only warmed up is written back, too. Only weights move: optimizer state would belong
    to a slot, not to a row, and its driver trains with SGD alone. Not modelled: several batches brought in together
    (`--prefetch_num`), the asynchronous copy, table-wise caches, and several devices.

    Memory: 4 B per row for ranks; 4 B per row and 28 B per slot, counts ending at 2^32 - 1. While it is built also the
    trace's frequencies.
    """

    moves_state = False
    variants = {"policy": ("dataset", "lfu")}

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        trace = setting.trace
        self._lfu = parameters["policy"] == "lfu"
        self._used = min(math.ceil(setting.slots * _WARM_SHARE), trace.rows)
        self._ranks = ranks(trace)
        frequent = np.flatnonzero(self._ranks < self._used)
        self._place = np.where(self._ranks < self._used, self._ranks, _ABSENT)  # the slot of each row
        self._row, self._accesses = np.zeros(setting.slots, np.int32), np.zeros(setting.slots, np.uint64)
        self._row[self._ranks[frequent]] = frequent
        if self._lfu:
            for start, counts in zip(trace.table_starts, trace.frequencies(), strict=True):
                mine = frequent[(frequent >= start) & (frequent < start + counts.size)]
                self._accesses[self._ranks[mine]] = np.minimum(counts[mine - start], _MOST)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, occurrences = batch.unique
        if rows.size > self.slots:
            raise CannotReplay(
                f"batch {batch.number} has {rows.size:,} distinct rows, the cache {self.slots:,} slots: its assertion "
                "fails; take a larger --cache-ratio or a smaller --batch-size"
            )
        places = self._place[rows]
        missed = places == _ABSENT
        misses = int(np.count_nonzero(missed))
        gone = max(0, self._used + misses - self.slots)
        slots = np.arange(self._used, self._used + misses - gone, dtype=np.int32)
        if gone:
            worth = self._worth()
            worth[places[~missed]] = np.iinfo(np.uint64).max
            emptied = np.sort(np.argpartition(worth, gone - 1)[:gone])
            self._place[self._row[emptied]] = _ABSENT
            slots = np.concatenate([emptied, slots])
        entering = np.sort(rows[missed])
        self._place[entering], self._row[slots], self._accesses[slots] = slots, entering, 0
        counted = self._place[rows]
        self._accesses[counted] = np.minimum(self._accesses[counted] + occurrences.astype(np.uint64), _MOST)
        self._used += misses - gone
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += gone

    def _worth(self) -> NDArray[np.uint64]:
        """Rank of the row of each used slot, uint64 `[used]`: those of the least are emptied."""
        if self._lfu:  # of equals the lowest slots
            return self._accesses[: self._used] << np.uint64(32) | np.arange(self._used, dtype=np.uint64)
        worth: NDArray[np.uint64] = _MOST - self._ranks[self._row[: self._used]].astype(np.uint64)
        return worth
