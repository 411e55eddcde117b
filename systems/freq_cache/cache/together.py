"""Lookups that may come before one backward: the rows of all of them keep their slots until it has updated them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.planner.planner import Ids, Plan

Bools = NDArray[np.bool_]


class Together:
    """Has the planner plan every batch with those before it, because a row of the batch in hand never leaves.

    So many `lookups` may come before one backward. Batches are announced and planned on one thread, and looked up on
    another.
    """

    def __init__(self, lookups: int) -> None:
        self._before = lookups - 1
        self._looked_up: deque[Ids] = deque(maxlen=self._before)
        self._planned: deque[tuple[int, Ids]] = deque()
        self._coming: deque[tuple[Ids, Bools]] = deque()
        self._lock = Lock()

    def announced(self, ids: Ids) -> Ids:
        """What to tell the planner of a batch that comes behind those announced: its ids, and theirs."""
        if not self._before:
            return ids
        with self._lock:
            before = [*self._looked_up, *(own for _, own in self._planned), *(own for own, _ in self._coming)]
            every, own = _merged(ids, before[-self._before :])
            self._coming.append((ids, own))
        return every

    def planned(self, plan: Plan) -> Plan:
        """The batch's own part of the plan for the batch announced longest ago. All moves remain."""
        if not self._before:
            return plan
        with self._lock:
            ids, own = self._coming.popleft()
            self._planned.append((plan.batch, ids))
        return _own_part(plan, own)

    def looked_up(self, batch: int) -> None:
        """A planned batch was looked up; those planned before it never will be."""
        with self._lock:
            while self._planned and self._planned[0][0] <= batch:
                number, ids = self._planned.popleft()
                if number == batch:
                    self._looked_up.append(ids)

    def withdrawn(self) -> None:
        """The planner forgot the batches that are not looked up."""
        with self._lock:
            self._planned.clear()
            self._coming.clear()


def _merged(ids: Ids, before: Sequence[Ids]) -> tuple[Ids, Bools]:
    """The ids of several batches as those of one, and which of them are the first one's."""
    batches = [ids, *before]
    begins = [np.concatenate(([0], batch.ends)) for batch in batches]
    pieces = [
        (batch.values[begin[at] : begin[at + 1]], batch is ids)
        for at in range(ids.starts.size)
        for batch, begin in zip(batches, begins, strict=True)
    ]
    own = np.repeat([mine for _, mine in pieces], [piece.size for piece, _ in pieces])
    ends = np.sum([batch.ends for batch in batches], axis=0)
    return Ids(np.concatenate([piece for piece, _ in pieces]), ends, ids.starts), own


def _own_part(plan: Plan, own: Bools) -> Plan:
    inverse = plan.inverse[own]
    used = np.zeros(plan.rows.size, np.bool_)
    used[inverse] = True
    inverse = (np.cumsum(used, dtype=np.int32) - 1)[inverse]
    slots, missed = plan.slots[used], plan.missed[used]
    return replace(
        plan,
        rows=plan.rows[used],
        slots=slots,
        missed=missed,
        inverse=inverse,
        slot_of_id=plan.slot_of_id[own],
        unique_misses=int(missed.sum()),
        lookup_misses=int(missed[inverse].sum()),
        overflow=plan.overflow and bool((slots < 0).any()),
    )
