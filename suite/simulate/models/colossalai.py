"""The cache of ColossalAI's CachedEmbedding."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.hot_set import ranks
from suite.simulate.models.model import CacheModel, CannotReplay, RowBytes, Setting, Tally
from suite.simulate.traces.trace import Int32s, Seen, Trace
from systems.freq_cache.compiled import compiled, prefetch

_WARM_SHARE = 0.7
"""Of the slots, filled before the first batch; its `warmup_ratio`."""

ABSENT, COMING = -1, -2
_IN_HAND, _LOOSE = 1, 2
"""Flags of a slot: the operation in hand needs its row; it is not in the heap."""

_MOST = 2**32 - 1
_FAR = 32
"""How many rows ahead a loop asks for memory."""

Bools = NDArray[np.bool_]


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

    variants = {"policy": ("dataset", "lfu"), "prefetch": ("1", "4", "16")}
    source = (
        "hpcaitech/ColossalAI colossalai/legacy/nn/parallel/layers/cache_embedding/cache_mgr.py; "
        "hpcaitech/CachedEmbedding recsys/dlrm_main.py; arXiv 2208.05321"
    )

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._together = int(parameters["prefetch"])
        warm = min(math.ceil(setting.slots * _WARM_SHARE), setting.trace.rows)
        made = _ByRank if parameters["policy"] == "dataset" else _ByCount
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
        if tally is None:
            return
        rows, occurrences = batch.unique
        tally.count(batch, rows, missed, self.setting.trace.table_starts)
        tally.lookup_misses = (tally.lookup_misses or 0) + int(occurrences[missed].sum())
        tally.rows_fetched += misses
        tally.rows_written_back += gone

    def bytes_moved(self, tally: Tally, row: RowBytes) -> tuple[int, int]:
        """Bytes fetched and bytes written back: no optimizer state moves."""
        return tally.rows_fetched * row.weights, tally.rows_written_back * row.weights

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


class _ByRank:
    """Resident rows as bits in order of rank, and those of the operation in hand. Slots do not matter here."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        self._ranks = ranks(trace)
        self._resident, self._in_hand = (np.zeros((trace.rows + 63) // 64, np.uint64) for _ in range(2))
        _set_lowest(self._resident, warm)

    def look_up(self, rows: Int32s, missed: Bools) -> int:
        return int(_look_up_ranks(rows, self._ranks, self._resident, self._in_hand, missed))

    def replace(self, batches: Sequence[Seen], missed: Sequence[Bools], *, used: int, gone: int) -> None:
        _clear_highest(self._resident, self._in_hand, gone)
        for batch in batches:
            _settle_ranks(batch.unique[0], self._ranks, self._resident, self._in_hand)


class _ByCount:
    """Slots with counts. Those that may leave are in a heap, least count first, under a count that may be outdated."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        rows, frequencies = _most_frequent(trace, warm)
        place = np.full(trace.rows, ABSENT, np.int32)
        row, heap = (np.zeros(slots, np.int32) for _ in range(2))
        accesses, under = (np.zeros(slots, np.uint32) for _ in range(2))
        self._state = _Counted(place, row, accesses, np.zeros(slots, np.uint8), under, heap)
        place[rows], row[:warm], accesses[:warm] = np.arange(warm), rows, np.minimum(frequencies, _MOST)
        heap[:warm] = np.argsort(accesses[:warm], kind="stable")  # in order, hence a heap
        under[:warm] = accesses[heap[:warm]]
        self._heaped = warm

    def look_up(self, rows: Int32s, missed: Bools) -> int:
        return int(_look_up_slots(rows, self._state, missed))

    def replace(self, batches: Sequence[Seen], missed: Sequence[Bools], *, used: int, gone: int) -> None:
        emptied = np.empty(gone, np.int32)
        self._heaped = _empty_least(self._state, self._heaped, emptied)
        entering = np.concatenate([batch.unique[0][absent] for batch, absent in zip(batches, missed, strict=True)])
        free = np.arange(used, used + entering.size - gone, dtype=np.int32)
        _fill(np.sort(entering), np.concatenate([np.sort(emptied), free]), self._state)
        for batch in batches:
            _add(*batch.unique, self._state)
        for batch in batches:
            self._heaped = _settle_slots(batch.unique[0], self._state, self._heaped)


def _most_frequent(trace: Trace, wanted: int) -> tuple[Int32s, NDArray[np.int64]]:
    """The most frequent rows, int32 `[wanted]`, in order of rank, and their frequencies."""
    ranked = ranks(trace)
    rows, found = np.empty(wanted, np.int32), np.empty(wanted, np.int64)
    chosen = np.flatnonzero(ranked < wanted)
    rows[ranked[chosen]] = chosen
    for start, counts in zip(trace.table_starts, trace.frequencies(), strict=True):
        mine = (rows >= start) & (rows < start + counts.size)
        found[mine] = counts[rows[mine] - start]
    return rows, found


@compiled
def _bit(rank):
    return np.uint64(1) << np.uint64(rank & 63)


@compiled
def _set_lowest(bits, wanted):
    for rank in range(wanted):
        bits[rank >> 6] |= _bit(rank)


@compiled
def _look_up_ranks(rows, ranked, resident, in_hand, missed):
    new = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(ranked, rows[i + _FAR])
        rank = ranked[np.uint64(rows[i])]
        word, bit = rank >> 6, _bit(rank)
        missed[i] = (resident[word] | in_hand[word]) & bit == 0
        new += in_hand[word] & bit == 0
        in_hand[word] |= bit
    return new


@compiled
def _clear_highest(resident, in_hand, wanted):
    """Take the highest ranks out that the operation in hand does not need."""
    word = resident.size
    while wanted > 0:
        word -= 1
        if resident[word] & ~in_hand[word] == 0:
            continue
        for i in range(63, -1, -1):
            bit = _bit(i)
            if wanted > 0 and resident[word] & ~in_hand[word] & bit:
                resident[word] ^= bit
                wanted -= 1


@compiled
def _settle_ranks(rows, ranked, resident, in_hand):
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(ranked, rows[i + _FAR])
        rank = ranked[np.uint64(rows[i])]
        resident[rank >> 6] |= _bit(rank)
        in_hand[rank >> 6] &= ~_bit(rank)


class _Counted(NamedTuple):
    """Of every row its slot, int32; of every slot its row, int32, its accesses, uint32, and flags, uint8.

    `heap`: slots, int32, and `under`: the counts that they were put there under, uint32; the true ones may be higher.
    """

    place: Int32s
    row: Int32s
    accesses: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    under: NDArray[np.uint32]
    heap: Int32s


@compiled
def _look_up_slots(rows, state, missed):
    new = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
        slot = state.place[np.uint64(rows[i])]
        missed[i] = slot == ABSENT
        if slot == ABSENT:
            state.place[np.uint64(rows[i])] = COMING
            new += 1
        elif slot != COMING:
            new += not state.flags[slot] & _IN_HAND
            state.flags[slot] |= _IN_HAND
    return new


@compiled
def _empty_least(state, heaped, emptied):
    """Empty the slots of the least counts that the operation in hand does not need. Returns the size of the heap."""
    found = 0
    while found < emptied.size:
        slot = state.heap[0]
        if not state.flags[slot] & _IN_HAND and state.accesses[slot] > state.under[0]:
            _sift_down(state, heaped, state.accesses[slot], slot)
            continue
        heaped -= 1
        _sift_down(state, heaped, state.under[heaped], state.heap[heaped])
        if state.flags[slot] & _IN_HAND:
            state.flags[slot] |= _LOOSE
        else:
            state.place[np.uint64(state.row[slot])] = ABSENT
            emptied[found] = slot
            found += 1
    return heaped


@compiled
def _fill(rows, slots, state):
    for i in range(rows.size):
        slot = slots[i]
        state.place[np.uint64(rows[i])] = slot
        state.row[slot] = rows[i]
        state.accesses[slot] = 0
        state.flags[slot] = _IN_HAND | _LOOSE


@compiled
def _add(rows, occurrences, state):
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
        slot = state.place[np.uint64(rows[i])]
        state.accesses[slot] = min(np.int64(state.accesses[slot]) + occurrences[i], _MOST)


@compiled
def _settle_slots(rows, state, heaped):
    """The operation in hand is done with a batch: its loose slots return to the heap, whose size is returned."""
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
        slot = state.place[np.uint64(rows[i])]
        if state.flags[slot] & _LOOSE:
            _sift_up(state, heaped, state.accesses[slot], slot)
            heaped += 1
        state.flags[slot] = 0
    return heaped


@compiled
def _before(count, slot, than_count, than_slot):
    return count < than_count or (count == than_count and slot < than_slot)


@compiled
def _sift_up(state, at, count, slot):
    """Put a slot into the heap, whose last place is `at`."""
    under, heap = state.under, state.heap
    while at > 0:
        parent = (at - 1) >> 1
        if not _before(count, slot, under[parent], heap[parent]):
            break
        under[at], heap[at] = under[parent], heap[parent]
        at = parent
    under[at], heap[at] = count, slot


@compiled
def _sift_down(state, heaped, count, slot):
    """Put a slot into the heap in place of its first."""
    under, heap = state.under, state.heap
    at = 0
    while 2 * at + 1 < heaped:
        child = 2 * at + 1
        if child + 1 < heaped and _before(under[child + 1], heap[child + 1], under[child], heap[child]):
            child += 1
        if not _before(under[child], heap[child], count, slot):
            break
        under[at], heap[at] = under[child], heap[child]
        at = child
    under[at], heap[at] = count, slot
