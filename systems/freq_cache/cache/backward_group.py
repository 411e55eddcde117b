"""Lookups that may come before one backward: the rows of all of them keep their slots until it has updated them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.planner.planner import Ids, Plan

Bools = NDArray[np.bool_]


@dataclass
class _Batch:
    """A batch that was announced. `own`: which of the ids that the planner was told are its; `number`: once planned."""

    ids: Ids
    own: Bools
    number: int = -1


class BackwardGroup:
    """Has the planner plan every batch with those before it, because a row of the batch in hand never leaves.

    So many `lookups` may come before one backward. `looked_up` is for the training thread; everything else is for the
    thread that talks to the planner.
    """

    def __init__(self, lookups: int) -> None:
        self._before = lookups - 1
        self._batches: list[_Batch] = []
        self._looked_up: deque[int] = deque(maxlen=self._before)
        """Numbers of the last lookups. Whatever was planned before the last of them and is missing here is gone."""

    def announced(self, ids: Ids) -> Ids:
        """What to tell the planner of a batch that comes behind those announced: its ids, and theirs."""
        if not self._before:
            return ids
        looked_up = tuple(self._looked_up)
        last = max(looked_up, default=-1)
        self._batches = [one for one in self._batches if one.number in looked_up or not 0 <= one.number <= last]
        every, own = _merged(ids, [batch.ids for batch in self._batches[-self._before :]])
        self._batches.append(_Batch(replace(ids, values=ids.values.copy()), own))  # the caller's may change later
        return every

    def planned(self, plan: Plan) -> Plan:
        """The batch's own part of the plan for the batch announced longest ago. All moves remain."""
        if not self._before:
            return plan
        batch = next(batch for batch in self._batches if batch.number < 0)
        batch.number = plan.batch
        return _own_part(plan, batch.own)

    def looked_up(self, batch: int) -> None:
        """A planned batch was looked up; those planned before it never will be."""
        self._looked_up.append(batch)

    def withdrawn(self) -> None:
        """The planner forgot the batches that are not looked up."""
        self._batches = [batch for batch in self._batches if batch.number in self._looked_up]


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
