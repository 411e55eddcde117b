"""The slow tier in host memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from systems.contract import Purpose, Tier
from systems.freq_cache.layout import RowLayout
from systems.freq_cache.slow_tier import SlowTier

_NUMPY_TYPES = {torch.float32: np.float32, torch.float16: np.float16}
_LINE_BYTES = 64


class HostTier(SlowTier):
    """All records in one block of host memory, which costs nothing where it is never written.

    Pageable, whatever the device: rows are gathered into pinned staging before they cross the link. numpy asks for
    huge pages, torch does not; rows at random places are then found with a fraction of the address translations. The
    block begins with a cache line: a record of 64 B then lies in one of them, not in two.
    """

    def __init__(self, *, rows: int, layout: RowLayout) -> None:
        super().__init__(rows=rows, layout=layout)
        block = np.zeros(rows * layout.record_bytes + _LINE_BYTES, np.uint8)
        start = -block.ctypes.data % _LINE_BYTES
        inside = block[start : start + rows * layout.record_bytes].view(_NUMPY_TYPES[layout.dtype])
        self.records = torch.from_numpy(inside.reshape(rows, layout.width))

    def read(self, rows: Tensor, out: Tensor) -> None:
        torch.index_select(self.records, 0, rows, out=out)

    def write(self, rows: Tensor, records: Tensor) -> None:
        self.records.index_copy_(0, rows, records)

    def memory(self) -> Mapping[tuple[Tier, Purpose], int]:
        weights = self.rows * self.layout.dim * self.layout.dtype.itemsize
        return {(Tier.HOST, Purpose.ROWS): weights, (Tier.HOST, Purpose.STATE): self.records.nbytes - weights}
