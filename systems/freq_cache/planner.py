"""Deciding which rows enter and leave the cache, on the host, before a batch is looked up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from systems.freq_cache.policy import Policy

_NOWHERE = -1


@dataclass(frozen=True)
class Moves:
    """What one batch needs. Copies out come before copies in: a fetched row may take a written-back row's slot.

    Attributes:
        slots: Slot of every id, int64 `[n]`. For an overflow batch: its position in `overflow_rows`.
        fetch_rows, fetch_slots: Rows to bring from the host, and the slots they take.
        write_back_rows, write_back_slots: Changed rows to take back to the host, and the slots they leave.
        overflow_rows: None unless the batch has more distinct rows than the cache has slots; then its distinct rows.
        missed_rows: Distinct rows absent when the batch arrived, before anything was fetched.
        unique_ids, lookup_misses: Of this batch.
    """

    slots: Tensor
    fetch_rows: Tensor
    fetch_slots: Tensor
    write_back_rows: Tensor
    write_back_slots: Tensor
    overflow_rows: Tensor | None
    missed_rows: Tensor
    unique_ids: int
    lookup_misses: int

    @property
    def unique_misses(self) -> int:
        """Distinct rows absent when the batch arrived."""
        return self.missed_rows.numel()


class Planner:
    """The index of a cache of `slots` slots over `rows` rows: 4 B per row, 17 B per slot, all on the host."""

    def __init__(self, *, rows: int, slots: int, policy: Policy) -> None:
        self.policy = policy
        self.slot_of_row = torch.full((rows,), _NOWHERE, dtype=torch.int32)
        self.row_of_slot = torch.full((slots,), _NOWHERE, dtype=torch.int64)
        self.dirty = torch.zeros(slots, dtype=torch.bool)
        self._last_step = torch.zeros(slots, dtype=torch.int64)
        self._step = 0
        self._used = 0

    @property
    def slots(self) -> int:
        """Slots of the cache."""
        return self.row_of_slot.numel()

    def index_bytes(self) -> int:
        """Host bytes of the index, the policy's scores included."""
        own = (self.slot_of_row, self.row_of_slot, self.dirty, self._last_step, self.policy.scores)
        return sum(tensor.nbytes for tensor in own)

    def warm_up(self) -> tuple[Tensor, Tensor]:
        """Fill the free slots with the rows of the highest scores. Returns their rows and slots."""
        free = min(self.slots, self.slot_of_row.numel()) - self._used
        if free <= 0 or self._used:
            return _empty(), _empty()
        rows = _extreme(self.policy.scores, free, largest=True)
        return rows, self._admit(rows)

    def plan(self, ids: Tensor, *, changes: bool) -> Moves:
        """Decide which rows enter and leave the cache before a batch is looked up.

        Args:
            ids: Row ids of one batch, int64 `[n]`, duplicates welcome, on the host, all within range.
            changes: Whether the batch's rows may be changed (training); they are marked for write-back.

        Returns:
            The slot of every id, with the rows to fetch and to write back.

        Cost: one gather per id, one sort over the misses only, and a top-k over the slots when something must leave.
        Source: arXiv 2208.05321, section 4.
        """
        self._step += 1
        self.policy.observe(ids)
        slots = self.slot_of_row.index_select(0, ids)
        missing_at = (slots < 0).nonzero().squeeze(1)
        missing = ids.index_select(0, missing_at).unique()
        self._touch(slots.index_select(0, (slots >= 0).nonzero().squeeze(1)))
        in_use = self._last_step == self._step
        resident = int(in_use.sum())
        unique_ids, lookup_misses = resident + missing.numel(), missing_at.numel()
        if unique_ids > self.slots:
            return self._overflow(ids, missing, unique_ids=unique_ids, lookup_misses=lookup_misses)
        leaving = self._victims(missing.numel() - (self.slots - self._used), in_use)
        gone = self._evict(leaving)
        entering = self._admit(missing)
        if missing.numel():
            slots.index_copy_(0, missing_at, self.slot_of_row.index_select(0, ids.index_select(0, missing_at)))
        if changes:
            self.dirty |= self._last_step == self._step
        return Moves(slots.long(), missing, entering, *gone, None, missing, unique_ids, lookup_misses)

    def changed(self) -> tuple[Tensor, Tensor]:
        """Rows and slots that the host copy lacks; they count as written back from now on."""
        slots = self.dirty.nonzero().squeeze(1)
        self.dirty.zero_()
        return self.row_of_slot.index_select(0, slots), slots

    def _overflow(self, ids: Tensor, missing: Tensor, *, unique_ids: int, lookup_misses: int) -> Moves:
        """Leave the cache as it is, but for free slots: those take the best of the missing rows."""
        free = self.slots - self._used
        scores = self.policy.scores.index_select(0, missing)
        entering = missing.index_select(0, _extreme(scores, min(free, missing.numel()), largest=True))
        entering_slots = self._admit(entering)
        rows, position = ids.unique(return_inverse=True)
        return Moves(position, entering, entering_slots, _empty(), _empty(), rows, missing, unique_ids, lookup_misses)

    def _touch(self, slots: Tensor) -> None:
        self._last_step.index_fill_(0, slots.long(), self._step)

    def _victims(self, wanted: int, in_use: Tensor) -> Tensor:
        """The `wanted` slots with the lowest scores that the batch in hand does not use; of equals, the lower slots."""
        if wanted <= 0:
            return _empty()
        candidates = (~in_use & (self.row_of_slot >= 0)).nonzero().squeeze(1)
        scores = self.policy.scores.index_select(0, self.row_of_slot.index_select(0, candidates))
        return candidates.index_select(0, _extreme(scores, wanted, largest=False))

    def _evict(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Free slots. Returns rows and slots of those that changed."""
        rows = self.row_of_slot.index_select(0, slots)
        self.slot_of_row.index_fill_(0, rows, _NOWHERE)
        self.row_of_slot.index_fill_(0, slots, _NOWHERE)
        self._used -= slots.numel()
        changed = self.dirty.index_select(0, slots).nonzero().squeeze(1)
        self.dirty.index_fill_(0, slots, False)
        return rows.index_select(0, changed), slots.index_select(0, changed)

    def _admit(self, rows: Tensor) -> Tensor:
        """Give rows free slots, which the current batch then uses. Returns the slots."""
        free = (self.row_of_slot < 0).nonzero().squeeze(1)[: rows.numel()]
        self.slot_of_row.index_copy_(0, rows, free.int())
        self.row_of_slot.index_copy_(0, free, rows)
        self._used += rows.numel()
        self._touch(free)
        return free


def _extreme(scores: Tensor, count: int, *, largest: bool) -> Tensor:
    """Ascending positions of the `count` highest or lowest scores; of equal scores, the lower positions.

    `torch.topk` leaves open which of equal scores it takes, and with it which rows move.
    """
    if not count:
        return _empty()
    values, positions = torch.topk(scores, count, largest=largest, sorted=False)
    bar = values.min() if largest else values.max()
    beyond = positions.index_select(0, (values != bar).nonzero().squeeze(1))
    at_the_bar = (scores == bar).nonzero().squeeze(1)[: count - beyond.numel()]
    return torch.cat([beyond, at_the_bar]).sort().values


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.int64)
