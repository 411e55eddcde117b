"""The slow tier in host memory."""

import mmap
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from systems.contract import Purpose, Tier
from systems.freq_cache.tiers.copies import put_rows
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import SlowTier


class HostTier(SlowTier):
    """All records in one block of host memory, whose pages take no memory until they are written.

    Pageable for every device: rows are gathered into pinned staging before they cross the link. The block is
    page-aligned, with huge pages if the system has them: random accesses then need a fraction of the address
    translations, and a record of 64 B is in one cache line, not in two.
    """

    def __init__(self, *, rows: int, layout: RowLayout) -> None:
        super().__init__(rows=rows, layout=layout)
        block = mmap.mmap(-1, rows * layout.record_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # a system without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
        self.records = torch.frombuffer(block, dtype=layout.element).view(rows, layout.width)

    def read(self, rows: Tensor, out: Tensor) -> None:
        torch.index_select(self.records, 0, rows, out=out)

    def write(self, rows: Tensor, records: Tensor) -> None:
        put_rows(self.records, rows, records)

    def memory(self) -> Mapping[tuple[Tier, Purpose], int]:
        weights = self.rows * self.layout.weight_bytes
        return {(Tier.HOST, Purpose.ROWS): weights, (Tier.HOST, Purpose.STATE): self.records.nbytes - weights}
