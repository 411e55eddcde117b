"""The frequency-aware cache of this project (arXiv 2208.05321), simulated by the very planner that trains."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Seen, Trace
from systems.freq_cache.batches import known_behind
from systems.freq_cache.cache.plan import Distinct, Plan
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.system import FreqCache
from systems.freq_cache.tiers.ram_index import IN_RAM, RamIndex


class FreqCacheModel(CacheModel):
    """`systems.freq_cache` without weights, equal to its counters one by one.

    The cache plans a batch some steps before its lookup, so that rows can be read meanwhile: with `look_ahead` of n it
    knows `known_behind(n)` batches behind the one that it plans.

    With `ram` of n, rows are on a drive, and of the slots that are given n in n + 1 are places of a level of RAM above
    it. Misses are then the rows that neither has; rows are fetched from the drive and written back to it.

    Memory: that of the `Planner`, 4 B per row and 20 B per slot, and 2 B per row for `static` and `lfu`; while `static`
    is built also the frequencies, 8 B per row; with `ram` 4 B per row and 23 B per place.
    """

    variants = {key: FreqCache.variants[key] for key in ("policy", "look_ahead")} | {"ram": ("0", "1", "3", "7", "15")}

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        trace = setting.trace
        policy = _policy_of(parameters["policy"], trace)
        slots = max(1, setting.slots // (1 + int(parameters["ram"])))
        self._planner = Planner(rows=trace.rows, slots=slots, policy=policy)
        self._planner.warm_up()
        self._bypassed = 0
        places = setting.slots - slots
        self._ram = _Ram(places, trace, policy, slots) if places else None

    @property
    def slots(self) -> int:
        return self._planner.slots + (self._ram.index.places if self._ram else 0)

    @property
    def look_ahead(self) -> int:
        return known_behind(int(self.parameters["look_ahead"]))

    def announce(self, batch: Seen) -> None:
        # nobody asks for the slot of an id
        self._planner.announce(Distinct(*batch.unique, inverse=np.empty(0, np.int32)), changes=True)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        plan = self._planner.plan()
        # What a batch larger than the cache has changed beside it goes home when the next one is looked up.
        back, self._bypassed = plan.back_rows.size + self._bypassed, 0
        fetched, missed = plan.fetch_rows.size, plan.missed
        if plan.overflow:
            self._bypassed = int(np.count_nonzero(plan.slots < 0))
            fetched += self._bypassed
        if self._ram is not None:
            missed, back = self._ram.move(plan)
            fetched = int(np.count_nonzero(missed))
        if tally is None:
            return
        tally.count(batch, missed)
        tally.lookup_misses += int(batch.unique[1][missed].sum())
        tally.rows_fetched += fetched
        tally.rows_written_back += back
        tally.overflow_batches += plan.overflow


class _Ram:
    """The index of a level of RAM as `FileTier` has it, without records: the file answers at once."""

    def __init__(self, places: int, trace: Trace, policy: Policy, slots: int) -> None:
        self._codes, self._sums = np.ones(trace.rows, np.int32), np.zeros(trace.rows, np.uint16)
        self._staging = 1 + min(trace.batch_lookups, slots) // 8  # rows that leave the slots at a time
        self.index = RamIndex(places, self._codes, keys=policy.keys_of_evicted)
        best = policy.best(slots + places)[slots:]
        self.index.enter(best, self.index.choose(best.size), dirty=False)

    def move(self, plan: Plan) -> tuple[NDArray[np.bool_], int]:
        """Move the rows of a batch. Returns which of its distinct rows the drive gave, and how many went there.

        As many rows as staging holds are read ahead, before others leave the slots, which also leave by stagings.
        """
        inside = plan.slots >= 0
        coming = plan.rows[plan.missed & inside]
        held = self._take(coming[: self._staging], plan.batch)
        parts = [slice(start, start + self._staging) for start in range(0, plan.back_rows.size, self._staging)]
        written = sum(self._evict(plan.back_rows[part]) for part in parts)
        held = np.concatenate([held, self._take(coming[self._staging :], plan.batch)])
        from_drive = plan.missed.copy()
        from_drive[plan.missed & inside] = ~held
        beside = plan.rows[~inside]
        from_drive[~inside] = self._codes[beside] < IN_RAM
        written += self._evict(beside)
        self.index.moved(plan.batch)
        return from_drive, written

    def _take(self, rows: NDArray[np.int32], batch: int) -> NDArray[np.bool_]:
        held = self._codes[rows] >= IN_RAM
        self.index.take(self._codes[rows[held]] - IN_RAM, batch)
        return held

    def _evict(self, rows: NDArray[np.int32]) -> int:
        held = self._codes[rows] >= IN_RAM
        self.index.vacate(self._codes[rows[held]] - IN_RAM)
        chosen = self.index.choose(rows.size)
        dirty, leaving = self.index.dirty(chosen)
        self.index.logged(leaving, np.ones(dirty.size, np.int64), self._sums, np.zeros(dirty.size, np.uint16))
        self.index.vacate(chosen)
        self.index.enter(rows[: chosen.size], chosen, dirty=True)
        return dirty.size + rows.size - chosen.size


def _policy_of(name: str, trace: Trace) -> Policy:
    if name == "lru":
        return LRU()
    return LFU(trace.rows) if name == "lfu" else _static(trace)


@lru_cache(maxsize=1)  # the same at every size of a cache
def _static(trace: Trace) -> StaticFrequency:
    return StaticFrequency(trace.frequencies())
