"""Interface of a slow tier, which holds all rows of a cache as records; layout of a record; tiers in host memory.

A record has a row's weights and its optimizer state side by side, so that one copy moves both.

Rows in int8: fbgemm's row-wise quantisation, with a scale that makes a second round trip exact.

A row of `dim` values is kept as `dim` codes of 8 bits, a scale and a bias in fp32; an element is `bias + code * scale`.
fbgemm takes the row's smallest value for the bias and 1/255 of its range for the scale. Encoding the decoded row again
does not reproduce fbgemm's own scale: one row in ten changed in a second round trip, some in every one. A scale of 16
significant bits is reproduced: 255 times it needs no rounding, and the rounding of the decoded maximum, if any, is too
small to change the scale or gives the old maximum.
"""

import mmap
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import fbgemm_gpu  # noqa: F401 - registers the operators
import torch
from torch import Tensor

from systems.contract import MemoryUse, Rows, Tier
from systems.freq_cache.compiled import put_rows


def width_of(dim: int) -> int:
    """Columns of a slot for rows of any width: fbgemm's kernels want a multiple of 4."""
    return -(-dim // 4) * 4


@dataclass(frozen=True)
class RowLayout:
    """A record: `width_of(dim)` weights, then the optimizer state in fp32, written as elements of one type.

    Attributes:
        dim: Weights per row. The other columns, in record and slot, are zero padding.
        dtype: Type of the weights: `torch.float32`, `torch.float16`, or `torch.int8` for rows in int8.
        state: fp32 values per record by state name, in storage order; a width of 1 is row-wise state.
    """

    dim: int
    dtype: torch.dtype
    state: Mapping[str, int]

    @cached_property
    def columns(self) -> int:
        """Weights per record, as many as a slot has."""
        return width_of(self.dim)

    @cached_property
    def element(self) -> torch.dtype:
        """Type of the elements of a record: that of the weights, int32 for rows in int8."""
        return torch.int32 if self.dtype is torch.int8 else self.dtype

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights per record, for int8 with scale and bias."""
        return self.columns * self.dtype.itemsize + (INT8_TAIL_BYTES if self.dtype is torch.int8 else 0)

    @cached_property
    def record_bytes(self) -> int:
        return self.weight_bytes + 4 * sum(self.state.values())

    @cached_property
    def width(self) -> int:
        return self.record_bytes // self.element.itemsize

    def empty(self, records: int, *, pin: bool = False, device: torch.device | None = None) -> Tensor:
        """Room for records, on the host if no device is named, `[records, width]`."""
        return torch.empty(records, self.width, dtype=self.element, pin_memory=pin, device=device)

    def weights(self, records: Tensor) -> Tensor:
        """The weights in records, `[n, columns]`: a view in `dtype`, or int8 decoded to fp32."""
        kept = self._kept(records)
        if self.dtype is not torch.int8:
            return kept.view(self.dtype)
        weights = decode_int8(kept.contiguous().view(torch.uint8))
        weights[:, self.dim :].zero_()
        return weights

    def set_weights(self, records: Tensor, weights: Tensor) -> None:
        """Write weights, `[n, dim]` or `[n, columns]`, into records, rounded to `dtype`."""
        kept = self._kept(records)
        if self.dtype is torch.int8:
            if self.columns > self.dim:
                # padding with the first column does not change the range of the row
                shown = torch.arange(self.columns, device=weights.device)
                shown[self.dim :] = 0
                weights = weights.index_select(1, shown)
            kept.copy_(encode_int8(weights.float()).view(torch.int32))
            return
        kept = kept.view(self.dtype)
        kept[:, : weights.shape[1]].copy_(weights)
        kept[:, weights.shape[1] :].zero_()

    def states(self, records: Tensor) -> dict[str, Tensor]:
        """The state in records by name, fp32 views `[n]` or `[n, width]`."""
        found, start = {}, self._kept(records).shape[1]
        for name, width in self.state.items():
            stop = start + width * (4 // self.element.itemsize)
            view = records[:, start:stop].view(torch.float32)
            found[name] = view.squeeze(1) if width == 1 else view
            start = stop
        return found

    def pack(self, rows: Rows) -> Tensor:
        """Records of rows, `[n, width]`; state that `rows` does not name is zero."""
        records = self.empty(rows.weights.shape[0])
        self.set_weights(records, rows.weights)
        for name, state in self.states(records).items():
            state.zero_()
            if name in rows.state:
                self._shown(state).copy_(rows.state[name])
        return records

    def unpack(self, records: Tensor) -> Rows:
        """Copies of the rows in records, weights in fp32."""
        states = {name: self._shown(state).clone() for name, state in self.states(records).items()}
        return Rows(self.weights(records)[:, : self.dim].to(torch.float32, copy=True), states)

    def repacked(self, records: Tensor, source: "RowLayout") -> Tensor:
        """Records of this layout from those of another one; the same where the two are equal."""
        return records if source == self else self.pack(source.unpack(records))

    def _shown(self, state: Tensor) -> Tensor:
        """The columns of a record's state that belong to the row, without padding."""
        return state if state.dim() == 1 else state[:, : self.dim]

    def _kept(self, records: Tensor) -> Tensor:
        return records[:, : self.weight_bytes // self.element.itemsize]


INT8_TAIL_BYTES = 8
"""Bytes per row beyond its codes: scale and bias, fp32."""

_UP = 2.0**40
"""fbgemm adds an epsilon to a row's range, on a CPU 1e-8: by this power of two nothing is rounded, and it is 1e-20."""
_LEAST_SCALE = 2e-20
"""Below this the epsilon would show in the codes; such a row is kept as its smallest value."""
_DROPPED_BITS = 8


def encode_int8(weights: Tensor) -> Tensor:
    """Compress rows.

    The error of a decoded element is at most `(max - min) / 505 + 2**-24 * |element| + 1e-17`, with the extremes of its
    row; fbgemm's own has 510 in place of 505. Constant rows, and rows that were decoded before, are exact.

    Args:
        weights: fp32 `[n, dim]`, `dim` a multiple of 4, magnitudes of a row adding up to 3e26 at most. A row with an
            infinity or a NaN is decoded as NaN.

    Returns:
        uint8 `[n, dim + 8]` on the same device.
    """
    raised = weights.contiguous() * _UP  # the operator treats every tensor as contiguous
    rows: Tensor = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(raised)
    tail = rows[:, -INT8_TAIL_BYTES:].view(torch.float32)
    scale, bias = tail[:, 0], tail[:, 1]
    half, mask = 1 << _DROPPED_BITS - 1, -1 << _DROPPED_BITS
    rounded = scale.view(torch.int32).add(half).bitwise_and_(mask).view(torch.float32) / _UP
    scale.copy_(rounded.masked_fill_(rounded < _LEAST_SCALE, 0.0))
    # fbgemm ignores NaN, a sum does not
    bias.div_(_UP).add_(raised.sum(dim=1).mul_(0.0))
    return rows


def decode_int8(rows: Tensor) -> Tensor:
    """Decode the result of `encode_int8` to rows, fp32 `[n, dim]`."""
    weights: Tensor = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(rows)
    return weights


class SlowTier(ABC):
    """`rows` records. One thread may read while another writes, as long as they do not touch the same row.

    Attributes:
        rows: Number of rows.
        layout: Layout of a record.
        ram_rows: How many rows a level of RAM above the rows has room for; 0: there is none.
        ram_rows_read: How many were read from it.
        rows_read: Records read from a file, initial weights among them.
    """

    ram_rows = ram_rows_read = rows_read = 0

    def __init__(self, *, rows: int, layout: RowLayout) -> None:
        self.rows = rows
        self.layout = layout

    @abstractmethod
    def read(self, rows: Tensor, out: Tensor) -> None:
        """Copy records of rows, int64 `[n]`, in any order, to `out`, `[n, layout.width]`, contiguous, on the host."""

    @abstractmethod
    def write(self, rows: Tensor, records: Tensor) -> None:
        """Overwrite records of rows, int64 `[n]`, each once, by `[n, layout.width]`, contiguous, on the host.

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
