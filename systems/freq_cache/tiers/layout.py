"""How one row travels: its weights and its optimizer state side by side, so that one copy moves both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from systems.contract import Rows
from systems.freq_cache.tiers import int8_rows


@dataclass(frozen=True)
class RowLayout:
    """A record: `dim` weights, then the optimizer state in fp32, written as elements of one type.

    Attributes:
        dim: Weights per row, a multiple of 4.
        dtype: Of the weights, `torch.float32`, `torch.float16`, or `torch.int8` for `int8_rows`.
        state: fp32 values per row by state name, in storage order; a width of 1 is row-wise state.
    """

    dim: int
    dtype: torch.dtype
    state: Mapping[str, int]

    @property
    def element(self) -> torch.dtype:
        """Type of the elements of a record: that of the weights, or int32, four codes in one."""
        return torch.int32 if self.dtype is torch.int8 else self.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes per record of the weights, what int8 needs beside its codes included."""
        return self.dim * self.dtype.itemsize + (int8_rows.TAIL_BYTES if self.dtype is torch.int8 else 0)

    @property
    def record_bytes(self) -> int:
        """Bytes per record."""
        return self.weight_bytes + 4 * sum(self.state.values())

    @property
    def width(self) -> int:
        """Elements per record."""
        return self.record_bytes // self.element.itemsize

    def empty(self, records: int, *, pin: bool = False, device: torch.device | None = None) -> Tensor:
        """Room for records, on the host if no device is named, `[records, width]`."""
        return torch.empty(records, self.width, dtype=self.element, pin_memory=pin, device=device)

    def weights(self, records: Tensor) -> Tensor:
        """The weights in records, `[n, dim]`: a view in `dtype`, or int8 decoded to fp32."""
        kept = self._kept(records)
        return int8_rows.decode(kept.contiguous().view(torch.uint8)) if self.dtype is torch.int8 else kept

    def set_weights(self, records: Tensor, weights: Tensor) -> None:
        """Write weights, `[n, dim]`, into records, rounded to `dtype`."""
        if self.dtype is torch.int8:
            weights = int8_rows.encode(weights.float()).view(torch.int32)
        self._kept(records).copy_(weights)

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
            if name in rows.state:
                state.copy_(rows.state[name])
            else:
                state.zero_()
        return records

    def unpack(self, records: Tensor) -> Rows:
        """Copies of the rows in records, weights in fp32."""
        states = {name: state.clone() for name, state in self.states(records).items()}
        return Rows(self.weights(records).to(torch.float32, copy=True), states)

    def repacked(self, records: Tensor, source: RowLayout) -> Tensor:
        """Records of this layout from those of another one; the same where the two are equal."""
        return records if source == self else self.pack(source.unpack(records))

    def _kept(self, records: Tensor) -> Tensor:
        return records[:, : self.weight_bytes // self.element.itemsize]
