"""Moving rows where both tiers lie in the same memory: straight from one place to the other, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.compiled import compiled, copy_bytes, inlined, prefetch_in
from systems.freq_cache.planner.planner import Plan
from systems.freq_cache.planner.threads import in_parts, parts_of
from systems.freq_cache.pool import RowPool
from systems.freq_cache.tiers.host import HostTier

_LINE_BYTES = 64
_LINES_AHEAD = 16
"""Cache lines of either tier to ask for ahead of time; the processor follows no more."""
_PART_ROWS = 1 << 11
"""Rows that are worth a thread."""

Bytes = NDArray[np.uint8]


class DirectMoves:
    """Between a `HostTier` and the slots of a pool on the CPU. Needs no staging, and has landed when it returns."""

    def __init__(self, tier: HostTier, pool: RowPool) -> None:
        self._records = _bytes_of(tier.records)
        self._weights = _bytes_of(pool.weights)
        states: list[Bytes | None] = [_bytes_of(values) for values in pool.state.values()]
        (self._state,) = states or [None]  # Adam, which has two, does not train on a CPU
        self._ahead = max(2, _LINES_AHEAD * _LINE_BYTES // tier.layout.record_bytes)

    def move(self, plan: Plan) -> None:
        """Write back and fetch what a plan says, each slot's old row before its new one."""
        moves = plan.fetch_rows, plan.fetch_slots, plan.back_rows, plan.back_slots
        count = plan.fetch_rows.size

        def some_rows(part: int, parts: int) -> None:
            begin, end = count * part // parts, count * (part + 1) // parts
            _exchange(self._records, self._weights, self._state, *moves, begin, end, self._ahead)

        in_parts(some_rows, parts_of(count, least=_PART_ROWS))


def _bytes_of(values: Tensor) -> Bytes:
    """The memory of rows, `[rows, bytes]`."""
    rows: NDArray[Any] = values.detach().reshape(values.shape[0], -1).numpy()
    return rows.view(np.uint8)


@compiled
def _exchange(records, weights, state, fetch_rows, fetch_slots, back_rows, back_slots, begin, end, ahead):
    """Moves number `begin` to `end`. Rows leave in the order in which others enter their slots.

    The less there is to do between two requests for memory, the more of them the processor has under way: what is None
    is not compiled.
    """
    back = 0
    for i in range(begin):
        if back < back_slots.size and back_slots[back] == fetch_slots[i]:
            back += 1
    width = weights.shape[1]
    for i in range(begin, end):
        if i + ahead < end:
            _ask_for(records, fetch_rows[i + ahead])
            _ask_for(weights, fetch_slots[i + ahead])
            if state is not None:
                _ask_for(state, fetch_slots[i + ahead])
        if back + ahead < back_rows.size:
            _ask_for(records, back_rows[back + ahead])
        slot, row = fetch_slots[i], fetch_rows[i]
        if back < back_slots.size and back_slots[back] == slot:
            gone = back_rows[back]
            copy_bytes(records, gone, 0, weights, slot, 0, width)
            if state is not None:
                copy_bytes(records, gone, width, state, slot, 0, state.shape[1])
            back += 1
        copy_bytes(weights, slot, 0, records, row, 0, width)
        if state is not None:
            copy_bytes(state, slot, 0, records, row, width, state.shape[1])


@inlined
def _ask_for(rows, i):
    """Ask for all lines of a row, which may begin anywhere in a line."""
    width = rows.shape[1]
    prefetch_in(rows, i, 0)
    if width > _LINE_BYTES:
        for byte in range(_LINE_BYTES, width, _LINE_BYTES):
            prefetch_in(rows, i, byte)
        if width % _LINE_BYTES:
            prefetch_in(rows, i, width - 1)
