"""The cache of ColossalAI's CachedEmbedding, by frequency of the dataset or by use.

Source: hpcaitech/ColossalAI colossalai/legacy/nn/parallel/layers/cache_embedding/cache_mgr.py;
hpcaitech/CachedEmbedding recsys/dlrm_main.py; arXiv 2208.05321.
"""

import math
from collections.abc import Mapping

import numpy as np

from suite.simulate.models.fae import ranks
from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally
from suite.simulate.trace import Int32s, Seen, Trace

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

    Memory: 4 B per row for ranks, kept with the trace; `dataset` 1 B per row more; `lfu` 4 B per row and 28 B per slot,
    counts ending at 2^32 - 1. While it is built also the trace's frequencies.
    """

    moves_state = False
    variants = {"policy": ("dataset", "lfu")}

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._used = min(math.ceil(setting.slots * _WARM_SHARE), setting.trace.rows)
        made = _RankedRows if parameters["policy"] == "dataset" else _CountedSlots
        self._cache = made(setting.trace, slots=setting.slots, warm=self._used)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, occurrences = batch.unique
        if rows.size > self.slots:
            raise CannotReplay(
                f"batch {batch.number} has {rows.size:,} distinct rows, the cache {self.slots:,} slots: its assertion "
                "fails; take a larger --cache-ratio or a smaller --batch-size"
            )
        missed = self._cache.missed(rows)
        misses = int(np.count_nonzero(missed))
        gone = max(0, self._used + misses - self.slots)
        self._cache.replace(rows, occurrences, missed, used=self._used, gone=gone)
        self._used += misses - gone
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += gone


class _RankedRows:
    """Whether the row of each rank is resident."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        self._ranks = trace.once(ranks)
        self._resident = np.zeros(trace.rows, np.bool_)
        self._resident[:warm] = True

    def missed(self, rows: Int32s) -> Bools:
        """Whether each row of a batch is absent, bool `[u]`."""
        missed: Bools = ~self._resident[self._ranks[rows]]
        return missed

    def replace(self, rows: Int32s, occurrences: Int32s, missed: Bools, *, used: int, gone: int) -> None:
        """Let `gone` rows leave, none of them of the batch, and the missed ones in. `used`: slots that were in use."""
        needed = self._ranks[rows]
        if gone:
            self._resident[needed] = False
            self._resident[np.flatnonzero(self._resident)[-gone:]] = False
        self._resident[needed] = True


class _CountedSlots:
    """The slot of each row, and of each slot its row and accesses."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        ranked = trace.once(ranks)
        frequent = np.flatnonzero(ranked < warm)
        self._place = np.where(ranked < warm, ranked, _ABSENT)
        self._row, self._accesses = np.zeros(slots, np.int32), np.zeros(slots, np.uint64)
        self._row[ranked[frequent]] = frequent
        for start, counts in zip(trace.table_starts, trace.frequencies(), strict=True):
            mine = frequent[(frequent >= start) & (frequent < start + counts.size)]
            self._accesses[ranked[mine]] = np.minimum(counts[mine - start], _MOST)

    def missed(self, rows: Int32s) -> Bools:
        """As for ranked rows."""
        missed: Bools = self._place[rows] == _ABSENT
        return missed

    def replace(self, rows: Int32s, occurrences: Int32s, missed: Bools, *, used: int, gone: int) -> None:
        """As for ranked rows."""
        slots = np.arange(used, used + np.count_nonzero(missed) - gone, dtype=np.int32)
        if gone:
            worth = self._accesses[:used] << np.uint64(32) | np.arange(
                used, dtype=np.uint64
            )  # of equals the lowest slots
            worth[self._place[rows[~missed]]] = np.iinfo(np.uint64).max
            emptied = np.sort(np.argpartition(worth, gone - 1)[:gone])
            self._place[self._row[emptied]] = _ABSENT
            slots = np.concatenate([emptied, slots])
        entering = np.sort(rows[missed])
        self._place[entering], self._row[slots], self._accesses[slots] = slots, entering, 0
        counted = self._place[rows]
        self._accesses[counted] = np.minimum(self._accesses[counted] + occurrences.astype(np.uint64), _MOST)
