"""Carrying rows, as records, between the slow tier and slots on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.pool import RowPool
from systems.freq_cache.tiers.pinned import PinnedTier
from systems.freq_cache.tiers.slow_tier import SlowTier
from systems.freq_cache.transfer import Arrival, Departure, Transfer

Int32s = NDArray[np.int32]

_CHUNK_BYTES = 8 << 20


class RowMover:
    """Reads rows of a slow tier into slots of any pool, and slots of any pool into the memory of the host."""

    def __init__(self, tier: SlowTier, transfer: Transfer) -> None:
        self.tier = tier
        self.transfer = transfer
        self.chunk_rows = max(1, _CHUNK_BYTES // tier.layout.record_bytes)
        """Rows moved at a time where many are: when the cache is filled or flushed."""

    def fetch(self, rows: Int32s) -> Arrival:
        """Read rows, int32 `[n]`, from the slow tier and send their records to the device.

        Raises:
            OSError: they could not be read.
        """
        wanted = as_long(rows)
        if isinstance(self.tier, PinnedTier):
            return self.transfer.gather(self.tier.on_device, wanted)
        records = self.tier.layout.empty(rows.size, pin=self.transfer.pins)
        self.tier.read(wanted, records)
        return self.transfer.to_device(records)

    def fill(self, pool: RowPool, slots: Int32s, rows: Int32s) -> None:
        """Overwrite slots, int32 `[n]`, with rows of the slow tier, a chunk at a time."""
        for start in range(0, rows.size, self.chunk_rows):
            chunk = slice(start, start + self.chunk_rows)
            (records,) = self.fetch(rows[chunk]).take()
            pool.fill(self.on_device(slots[chunk]), records)

    def read(self, pool: RowPool, slots: Int32s) -> Departure:
        """Send the records in slots, int32 `[n]`, to the host."""
        return self.transfer.to_host(pool.read(self.on_device(slots)))

    def copy(self, source: RowPool, from_slots: Int32s, target: RowPool, to_slots: Int32s) -> None:
        """Overwrite slots of one pool with slots of another, int32 `[n]` each."""
        target.copy(self.on_device(to_slots), source, self.on_device(from_slots))

    def on_device(self, numbers: NDArray[Any]) -> Tensor:
        """Row or slot numbers as int64 on the device."""
        return self.transfer.to_device(as_long(numbers)).take()[0]


def as_long(numbers: NDArray[Any]) -> Tensor:
    """As an int64 tensor on the host."""
    return torch.from_numpy(numbers.astype(np.int64))
