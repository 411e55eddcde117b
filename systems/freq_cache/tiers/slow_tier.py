"""Interface of a slow tier, which holds all rows of a cache as records; and tiers in host memory."""

import mmap
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace

import torch
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache.compiled import put_rows
from systems.freq_cache.tiers.layout import RowLayout


class SlowTier(ABC):
    """`rows` records. One thread may read while another writes, as long as they do not touch the same row.

    Attributes:
        rows: Number of rows.
        layout: Layout of a record.
        ram_rows: How many rows a level of RAM above the rows has room for; 0: there is none.
        ram_rows_read: How many were read from it.
    """

    ram_rows = ram_rows_read = 0

    def __init__(self, *, rows: int, layout: RowLayout) -> None:
        self.rows = rows
        self.layout = layout

    @abstractmethod
    def read(self, rows: Tensor, out: Tensor) -> None:
        """Copy records out.

        Args:
            rows: int64 `[n]` on the host, in any order.
            out: `[n, layout.width]` on the host, contiguous.
        """

    @abstractmethod
    def write(self, rows: Tensor, records: Tensor) -> None:
        """Overwrite records.

        Args:
            rows: int64 `[n]` on the host, each row once.
            records: `[n, layout.width]` on the host, contiguous.

        Raises:
            OSError: they could not be written; earlier rows stay readable, and the same call may be repeated.
        """

    def evict(self, rows: Tensor, records: Tensor) -> None:
        """Overwrite records, as `write`, of rows that leave the slots."""
        self.write(rows, records)

    def take(self, rows: Tensor, batch: int) -> None:  # noqa: B027 - most tiers have one level
        """Note that a batch, which was read and not moved yet, will change rows, int64 `[n]`, in their slots."""

    def moved(self, batch: int) -> None:  # noqa: B027
        """Note that the rows of all batches up to this one are in their slots, which will be written back."""

    def keep(self, rows: Tensor) -> None:  # noqa: B027
        """Bring rows, int64 `[n]`, the best first, to the level of RAM, as many as it has room for."""

    @abstractmethod
    def memory(self) -> Mapping[tuple[Tier, MemoryUse], int]:
        """Bytes by tier and purpose."""

    def close(self) -> None:  # noqa: B027 - most tiers hold nothing open
        """Close the files and release the memory that the tier holds."""


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

    def memory(self) -> Mapping[tuple[Tier, MemoryUse], int]:
        weights = self.rows * self.layout.weight_bytes
        return {(Tier.HOST, MemoryUse.ROWS): weights, (Tier.HOST, MemoryUse.STATE): self.records.nbytes - weights}


class PinnedTier(HostTier):
    """All records in one block of page-locked host memory that is mapped into the device's address space.

    The device gathers rows to fetch across the link; no host thread reads them. The whole block is allocated at once,
    written or not. A host thread writes rows back as with a `HostTier`, or the device does. On a CPU nothing is pinned.

    Attributes:
        on_device: The records as a tensor of the device, `[rows, width]`.
        by_kernel: The device copies rows in both directions, by a kernel that uses few multiprocessors.

    Raises:
        MemoryError: the block cannot be pinned.
        RuntimeError: the device cannot map the block, or Triton finds no C compiler for the kernel.
    """

    def __init__(self, rows: int, layout: RowLayout, device: torch.device, *, by_kernel: bool = False) -> None:
        super().__init__(rows=rows, layout=layout)
        self.by_kernel = by_kernel
        self._copy_rows: Callable[..., None] | None = None
        self.on_device = self.records
        self._unpin: Callable[[], object] | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                _register(self.records, device)
                self._unpin = unpin = weakref.finalize(self, _unregister, self.records, device)
                unpin.atexit = False  # the end of the process unpins it
                # registered memory has the same address on device and host
                seen = SimpleNamespace(__cuda_array_interface__=self.records.numpy().__array_interface__)
                self.on_device = torch.as_tensor(seen, device=device)
                if self.on_device.data_ptr() != self.records.data_ptr():  # torch copied them: another device's memory
                    self.close()
                    raise RuntimeError(
                        f"{device} does not see pinned rows where the host has them: keep the rows pageable"
                    )
        if by_kernel:
            from systems.freq_cache.tiers import copy_kernels  # imports Triton

            self._copy_rows = copy_kernels.copy_rows
            with torch.cuda.device_of(self.on_device):
                copy_kernels.compile_for(self.on_device)

    def gather(self, rows: Tensor, out: Tensor) -> None:
        """Let the device copy rows, int32 or int64 `[n]`, to `out`, `[n, width]`, both on the device."""
        if self._copy_rows is None:
            torch.index_select(self.on_device, 0, rows, out=out)
        else:
            self._copy_rows(self.on_device, rows, out, gathers=True)

    def scatter(self, rows: Tensor, records: Tensor) -> None:
        """Let the device write records, `[n, width]`, to rows, int32 or int64 `[n]`, both on it; only `by_kernel`."""
        assert self._copy_rows is not None
        self._copy_rows(self.on_device, rows, records, gathers=False)

    def close(self) -> None:
        self.on_device = self.records
        if self._unpin is not None:
            self._unpin()


def _register(records: Tensor, device: torch.device) -> None:
    mapped = 2  # cudaHostRegisterMapped
    code = torch.cuda.cudart().cudaHostRegister(records.data_ptr(), records.nbytes, mapped)
    if int(code) != 0:
        with suppress(RuntimeError):  # clears the pending error, which the next kernel would report
            torch.ones(1, device=device)
        raise MemoryError(
            f"{records.nbytes:,} bytes of host memory cannot be pinned (cudaHostRegister says {code}): "
            "give less, raise the limit of locked memory (ulimit -l), or keep the rows pageable"
        )


def _unregister(records: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # kernels that read them may still run
    torch.cuda.cudart().cudaHostUnregister(records.data_ptr())
