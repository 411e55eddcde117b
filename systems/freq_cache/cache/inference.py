"""Lookups that do not change a cache: no row is fetched into a slot or evicted, and nothing is counted."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import PoolingType

from systems.freq_cache.cache.mover import RowMover, as_long
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.planner.planner import Ids, Planner


@dataclass(frozen=True)
class Inference:
    """Looks rows up in their slots, or reads them from the slow tier without keeping them.

    A batch is looked up some bags at a time, so that it takes only a few MB on the device beyond the slots.

    All plans of `planner` must have been moved, and all write-backs must have reached the tier of `mover`.
    """

    planner: Planner
    slots: SlotTable
    mover: RowMover
    pooling: PoolingType

    def look_up(self, ids: Ids, offsets: NDArray[np.int64], weights: Tensor | None) -> Tensor:
        """As `SlotTable.look_up`, fp32 without a gradient. The caller has checked the ids; weights on any device."""
        counts = np.diff(ids.ends, prepend=0)
        rows = ids.values + np.repeat(ids.starts, counts)
        most = self.mover.chunk_rows
        if self.pooling is PoolingType.NONE:
            parts = [self._rows(rows[start : start + most]) for start in range(0, rows.size, most)]
            return torch.cat(parts or [self._rows(rows)])
        parts, start = [], 0
        while start < offsets.size - 1:
            stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + most, side="right")) - 1)
            part = slice(offsets[start], offsets[stop])
            parts.append(self._bags(rows[part], offsets[start : stop + 1], None if weights is None else weights[part]))
            start = stop
        bags = torch.cat(parts or [self._rows(rows)])
        by_feature: Tensor = bags.unflatten(0, (ids.starts.size, (offsets.size - 1) // ids.starts.size))
        return by_feature.transpose(0, 1).flatten(1)

    def _bags(self, rows: NDArray[np.int64], offsets: NDArray[np.int64], weights: Tensor | None) -> Tensor:
        """Pooled bags, `[bags, dim]`."""
        values, at = self._distinct(rows)
        bags = nn.functional.embedding_bag(
            at,
            values,
            self.mover.on_device(offsets - offsets[0]),
            mode="sum",
            per_sample_weights=None if weights is None else weights.to(values),
            include_last_offset=True,
        )
        if self.pooling is PoolingType.SUM:
            return bags
        # multiply by the reciprocal, as fbgemm's kernels do; torch would divide
        return bags * self.mover.on_device(np.diff(offsets).clip(min=1)).float().reciprocal()[:, None]

    def _rows(self, rows: NDArray[np.int64]) -> Tensor:
        """A row per id, `[n, dim]`."""
        values, at = self._distinct(rows)
        return values.index_select(0, at)

    def _distinct(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Distinct rows, fp32 `[u, dim]` on the device, and the index into them of each row."""
        distinct, inverse = np.unique(rows, return_inverse=True)
        slots = self.planner.slots_of(distinct)
        held, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        device, dim = self.slots.weights.device, self.slots.layout.dim
        values = torch.empty(distinct.size, dim, dtype=torch.float32, device=device)
        in_slots = self.slots.weights.index_select(0, self.mover.on_device(slots[held]))
        values[self.mover.on_device(held)] = in_slots[:, :dim].float()
        fetched = self.slots.layout.weights(self.mover.fetch(as_long(distinct[absent])))
        values[self.mover.on_device(absent)] = fetched[:, :dim].float()
        return values, self.mover.on_device(inverse)
