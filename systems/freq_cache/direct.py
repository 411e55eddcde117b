"""Moving rows where both tiers lie in the same memory: straight from one place to the other, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.compiled import compiled, prefetch_in
from systems.freq_cache.hands import in_parts, parts_of
from systems.freq_cache.host_tier import HostTier
from systems.freq_cache.planner import Plan
from systems.freq_cache.pool import RowPool

_MOST_PARTS = 3
"""Weights, and the two states of Adam."""

_AHEAD = 8
_LINE_BYTES = 64
_PART_ROWS = 1 << 11
"""Rows that are worth a thread."""
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


class DirectMoves:
    """Between a `HostTier` and the slots of a pool on the CPU. Needs no staging, and has landed when it returns."""

    def __init__(self, tier: HostTier, pool: RowPool) -> None:
        layout = tier.layout
        records = tier.records
        pairs = [(layout.weights(records), pool.weights)]
        pairs += [(state, pool.state[name]) for name, state in layout.states(records).items()]
        pairs += [(records[:, :0], pool.weights[:, :0])] * (_MOST_PARTS - len(pairs))
        parts = [_words(rows, slots) for rows, slots in pairs]
        self._rows, self._slots = (tuple(side) for side in zip(*parts, strict=True))

    def move(self, plan: Plan) -> None:
        """Write back and fetch what a plan says, each slot's old row before its new one."""
        moves = plan.fetch_rows, plan.fetch_slots, plan.back_rows, plan.back_slots
        count = plan.fetch_rows.size

        def some_rows(part: int, parts: int) -> None:
            _exchange(self._rows, self._slots, *moves, count * part // parts, count * (part + 1) // parts)

        in_parts(some_rows, parts_of(count, least=_PART_ROWS))


def _words(rows: Tensor, slots: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same bytes, `[rows, words]`, as the widest integers that divide a row. They need not be aligned."""
    arrays = [values.reshape(values.shape[0], -1).numpy() for values in (rows, slots)]
    row_bytes = arrays[0].shape[1] * arrays[0].itemsize
    size = next(size for size in (8, 4, 2) if row_bytes % size == 0)
    first, second = (array.view(f"u{size}") for array in arrays)
    return first, second


@compiled
def _exchange(rows, slots, fetch_rows, fetch_slots, back_rows, back_slots, begin, end):
    """Moves number `begin` to `end`. Rows leave in the order in which others enter their slots."""
    back = 0
    for i in range(begin):
        if back < back_slots.size and back_slots[back] == fetch_slots[i]:
            back += 1
    for i in range(begin, end):
        if i + _AHEAD < end:
            _ask_for(rows, fetch_rows[i + _AHEAD])
            _ask_for(slots, fetch_slots[i + _AHEAD])
        if back + _AHEAD < back_rows.size:
            _ask_for(rows, back_rows[back + _AHEAD])
        slot = np.uint64(fetch_slots[i])
        if back < back_slots.size and back_slots[back] == fetch_slots[i]:
            gone = np.uint64(back_rows[back])
            _copy(slots[0], slot, rows[0], gone)
            _copy(slots[1], slot, rows[1], gone)
            _copy(slots[2], slot, rows[2], gone)
            back += 1
        row = np.uint64(fetch_rows[i])
        _copy(rows[0], row, slots[0], slot)
        _copy(rows[1], row, slots[1], slot)
        _copy(rows[2], row, slots[2], slot)


@compiled
def _ask_for(parts, i):
    for word in range(0, parts[0].shape[1], _LINE_BYTES // parts[0].itemsize):
        prefetch_in(parts[0], i, word)
    for word in range(0, parts[1].shape[1], _LINE_BYTES // parts[1].itemsize):
        prefetch_in(parts[1], i, word)
    for word in range(0, parts[2].shape[1], _LINE_BYTES // parts[2].itemsize):
        prefetch_in(parts[2], i, word)


@compiled
def _copy(source, i, target, j):
    """One row, four words at a time: they may be loaded before any is stored, which a plain loop does not know."""
    width = source.shape[1]
    whole = width - width % 4
    for word in range(0, whole, 4):
        at = np.uint64(word)
        a, b, c, d = source[i, at], source[i, at + _1], source[i, at + _2], source[i, at + _3]
        target[j, at], target[j, at + _1], target[j, at + _2], target[j, at + _3] = a, b, c, d
    for word in range(whole, width):
        target[j, np.uint64(word)] = source[i, np.uint64(word)]
