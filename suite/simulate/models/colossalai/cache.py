"""The cache of ColossalAI's CachedEmbedding."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from suite.simulate.models.colossalai.dataset import RankedRows
from suite.simulate.models.colossalai.lfu import CountedSlots
from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally
from suite.simulate.traces.trace import Int32s, Seen

_WARM_SHARE = 0.7
"""Of the slots, filled before the first batch; its `warmup_ratio`."""


class ColossalAIModel(CacheModel):
    """CachedEmbedding as published: one cache for all tables, every missing row enters, every leaving row is written.

    `prefetch` batches at a time are brought in by one cache operation, as its driver does with `--prefetch_num`. Their
    distinct rows must be resident together: if they are more than the slots an assertion fails, here `CannotReplay`.
    None of them leaves in that operation. Before the first batch 70 % of the slots (rounded up) are filled with the
    most frequent rows, as with `--use_freq`; only then can `dataset` rank at all.

    - `dataset`: rows are ranked by falling frequency, and the resident rows of the largest ranks leave. torch sorts
      equal frequencies as it likes; here the lower row ranks first.
    - `lfu`: every slot counts accesses. A warmed-up one starts at its row's frequency, one filled later at 0; then
      every operation adds how often each of its rows occurs in it, the filling one included. Slots of the least counts
      are emptied; torch leaves open which of equals, here the lowest slots, as top-k on CUDA takes them in order. The
      missing rows take the lowest empty slots in ascending order. What was counted of a row is lost when it leaves.

    A row is missed by the batch of an operation that has it first, if it was absent then; a write-back is counted with
    the miss that it makes room for. It has no dirty bit: what was only warmed up is written back, too. Only weights
    move: optimizer state would belong to a slot, not to a row, and its driver trains with SGD alone. Not modelled: the
    asynchronous copy, table-wise caches, and several devices.

    Memory: `dataset` 4 B per row (ranks, kept with the trace) and 2 bits; `lfu` 8 B per row (ranks, and the slots) and
    17 B per slot, counts ending at 2^32 - 1. While it is built also the trace's frequencies.
    """

    moves_state = False
    variants = {"policy": ("dataset", "lfu"), "prefetch": ("1", "4", "16")}
    source = (
        "hpcaitech/ColossalAI colossalai/legacy/nn/parallel/layers/cache_embedding/cache_mgr.py; "
        "hpcaitech/CachedEmbedding recsys/dlrm_main.py; arXiv 2208.05321"
    )

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._together = int(parameters["prefetch"])
        warm = min(math.ceil(setting.slots * _WARM_SHARE), setting.trace.rows)
        made = RankedRows if parameters["policy"] == "dataset" else CountedSlots
        self._cache: _Cache = made(setting.trace, slots=setting.slots, warm=warm)
        self._used = warm
        self._coming: deque[Seen] = deque()
        self._missed: deque[Bools] = deque()

    @property
    def look_ahead(self) -> int:
        return self._together - 1

    def announce(self, batch: Seen) -> None:
        self._coming.append(batch)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if not self._missed:
            self._operate()
        missed = self._missed.popleft()
        self._coming.popleft()
        misses = int(np.count_nonzero(missed))
        gone = max(0, self._used + misses - self.slots)
        self._used += misses - gone
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += gone

    def _operate(self) -> None:
        """One cache operation for the batches that have come."""
        batches = list(self._coming)
        distinct = 0
        for batch in batches:
            rows, _ = batch.unique
            missed = np.empty(rows.size, np.bool_)
            distinct += self._cache.look_up(rows, missed)
            self._missed.append(missed)
        if distinct > self.slots:
            these = f"batch {batches[0].number} has" if len(batches) == 1 else f"{len(batches)} batches have"
            raise CannotReplay(
                f"{these} {distinct:,} distinct rows, the cache {self.slots:,} slots: its assertion fails; "
                "take a larger --cache-ratio, a smaller --batch-size or prefetch=1"
            )
        misses = sum(int(np.count_nonzero(missed)) for missed in self._missed)
        gone = max(0, self._used + misses - self.slots)
        self._cache.replace(batches, list(self._missed), used=self._used, gone=gone)


class _Cache(Protocol):
    """What differs between the policies."""

    def look_up(self, rows: Int32s, missed: Bools) -> int:
        """Enter the rows of a batch into the operation in hand. Returns how many it did not have.

        `missed`, bool `[u]`, receives which of these are absent.
        """

    def replace(self, batches: Sequence[Seen], missed: Sequence[Bools], *, used: int, gone: int) -> None:
        """Let `gone` rows leave and the missed ones of all batches in. `used`: slots that were in use."""
