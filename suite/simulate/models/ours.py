"""The frequency-aware cache of this project, simulated by the very planner that trains."""

from collections.abc import Mapping

import numpy as np

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Seen, Trace, once_per_trace
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.system import FreqCache


class FreqCacheModel(CacheModel):
    """`systems.freq_cache` without weights, equal to its counters one by one.

    The cache plans a batch one step before it is looked up, so that rows can be read meanwhile: with `look_ahead` of n
    it knows n - 1 batches behind the one that it plans, and with 1 none, as with 0.

    Memory: that of the `Planner`, 4 B per row and 20 B per slot, and 2 B per row for `static` and `lfu`; while `static`
    is built also the frequencies, 8 B per row.
    """

    variants = {key: FreqCache.variants[key] for key in ("policy", "look_ahead")}
    source = "systems/freq_cache/cache/planner.py, arXiv 2208.05321"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        trace = setting.trace
        policy = _policy_of(parameters["policy"], trace)
        self._planner = Planner(rows=trace.rows, slots=setting.slots, policy=policy, batch_ids=trace.batch_lookups)
        self._planner.warm_up()
        self._bypassed = 0

    @property
    def slots(self) -> int:
        return self._planner.slots

    @property
    def look_ahead(self) -> int:
        return max(0, int(self.parameters["look_ahead"]) - 1)

    def announce(self, batch: Seen) -> None:
        self._planner.announce(self._planner.distinct(batch.ids), changes=True)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        plan = self._planner.plan()
        # What a batch larger than the cache has changed beside it goes home when the next one is looked up.
        back, self._bypassed = plan.back_rows.size + self._bypassed, 0
        fetched = plan.fetch_rows.size
        if plan.overflow:
            self._bypassed = int(np.count_nonzero(plan.slots < 0))
            fetched += self._bypassed
        if tally is None:
            return
        tally.count(batch, plan.rows, plan.missed, self.setting.trace.table_starts)
        tally.lookup_misses += plan.lookup_misses
        tally.rows_fetched += fetched
        tally.rows_written_back += back
        tally.overflow_batches += plan.overflow


def _policy_of(name: str, trace: Trace) -> Policy:
    if name == "lru":
        return LRU()
    return LFU(trace.rows) if name == "lfu" else _static(trace)


@once_per_trace
def _static(trace: Trace) -> StaticFrequency:
    return StaticFrequency(trace.frequencies())
