"""The slow tier in page-locked host memory, which the device reads by itself."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import torch
from torch import Tensor

from systems.freq_cache.tiers.host_memory import HostTier
from systems.freq_cache.tiers.layout import RowLayout


class PinnedTier(HostTier):
    """All records in one block of host memory that cannot be paged, and that the device sees where it is.

    Rows that are fetched are gathered by the device, across the link; no thread of the host reads them. The whole block
    is taken at once, written or not. Rows are written back as to a `HostTier`, or by the device too. On a CPU there is
    nothing to pin: the device sees the same memory anyway.

    Attributes:
        on_device: The records as a tensor of the device, `[rows, width]`.
        exchanges: The device moves rows both ways, by a kernel that leaves most of it to training.

    Raises:
        MemoryError: the block cannot be pinned.
        RuntimeError: the device does not see it, or Triton finds no C compiler for the kernel.
    """

    def __init__(self, rows: int, layout: RowLayout, device: torch.device, *, exchanges: bool = False) -> None:
        super().__init__(rows=rows, layout=layout)
        self.exchanges = exchanges
        self.on_device = self.records
        self._unpin: Callable[[], object] | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                _register(self.records, device)
                self._unpin = unpin = weakref.finalize(self, _unregister, self.records, device)
                unpin.atexit = False  # the process lets go of it
                # of registered memory the device's address is the host's
                seen = SimpleNamespace(__cuda_array_interface__=self.records.numpy().__array_interface__)
                self.on_device = torch.as_tensor(seen, device=device)
                if not _same_pages(self.records, self.on_device):
                    self.close()
                    raise RuntimeError(
                        f"{device} does not see pinned rows where the host has them: keep the rows pageable"
                    )
        if exchanges:
            from systems.freq_cache.tiers import exchange  # imports Triton

            with torch.cuda.device_of(self.on_device):
                exchange.compile_for(self.on_device)

    def gather(self, rows: Tensor, out: Tensor) -> None:
        """Have the device read rows, int32 or int64 `[n]` there, to `out`, `[n, width]` there."""
        if not self.exchanges:
            torch.index_select(self.on_device, 0, rows, out=out)
            return
        from systems.freq_cache.tiers import exchange

        exchange.gather(self.on_device, rows, out)

    def scatter(self, rows: Tensor, records: Tensor) -> None:
        """Have the device write records, `[n, width]`, to rows, int32 or int64 `[n]`, both there, if it `exchanges`."""
        from systems.freq_cache.tiers import exchange

        exchange.scatter(self.on_device, rows, records)

    def close(self) -> None:
        self.on_device = self.records
        if self._unpin is not None:
            self._unpin()


def _same_pages(records: Tensor, on_device: Tensor) -> bool:
    """Whether the device sees what the host writes. torch would make a copy, were they another device's to see."""
    for row in (0, records.shape[0] - 1):
        for number in (1, 0):  # rows are zero before they are written
            records[row] = number
            if not bool((on_device[row] == number).all()):
                return False
    return True


def _register(records: Tensor, device: torch.device) -> None:
    mapped = 2  # cudaHostRegisterMapped
    code = torch.cuda.cudart().cudaHostRegister(records.data_ptr(), records.nbytes, mapped)
    if int(code) != 0:
        with suppress(RuntimeError):  # the error waits for the next kernel, which would be blamed for it: one of ours
            torch.ones(1, device=device)
        raise MemoryError(
            f"{records.nbytes:,} bytes of host memory cannot be pinned (cudaHostRegister says {code}): "
            "give less, raise the limit of locked memory (ulimit -l), or keep the rows pageable"
        )


def _unregister(records: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # what reads them may still be under way
    torch.cuda.cudart().cudaHostUnregister(records.data_ptr())
