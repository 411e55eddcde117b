"""How one row travels: its weights and its optimizer state side by side, so that one copy moves both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from systems.contract import Rows


@dataclass(frozen=True)
class RowLayout:
    """A record: `dim` weights of `dtype`, then the optimizer state in fp32, written as elements of `dtype`.

    Attributes:
        dim: Weights per row, a multiple of 4.
        dtype: Of the weights, `torch.float32` or `torch.float16`.
        state: fp32 values per row by state name, in storage order; a width of 1 is row-wise state.
    """

    dim: int
    dtype: torch.dtype
    state: Mapping[str, int]

    @property
    def width(self) -> int:
        """Elements of `dtype` per record."""
        return self.dim + sum(self.state.values()) * (4 // self.dtype.itemsize)

    @property
    def record_bytes(self) -> int:
        """Bytes per record."""
        return self.width * self.dtype.itemsize

    def empty(self, records: int, *, pin: bool = False) -> Tensor:
        """Room for records on the host, `[records, width]`."""
        return torch.empty(records, self.width, dtype=self.dtype, pin_memory=pin)

    def weights(self, records: Tensor) -> Tensor:
        """The weights in records, a view `[n, dim]`."""
        return records[:, : self.dim]

    def states(self, records: Tensor) -> dict[str, Tensor]:
        """The state in records by name, fp32 views `[n]` or `[n, width]`."""
        found, start = {}, self.dim
        for name, width in self.state.items():
            stop = start + width * (4 // self.dtype.itemsize)
            view = records[:, start:stop].view(torch.float32)
            found[name] = view.squeeze(1) if width == 1 else view
            start = stop
        return found

    def pack(self, rows: Rows) -> Tensor:
        """Records of rows, `[n, width]`; state that `rows` does not name is zero."""
        records = self.empty(rows.weights.shape[0])
        self.weights(records).copy_(rows.weights)
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
