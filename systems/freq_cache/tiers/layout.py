"""Layout of a row's record: its weights and its optimizer state side by side, so that one copy moves both."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from systems.contract import Rows
from systems.freq_cache.tiers import int8_rows


def width_of(dim: int) -> int:
    """Columns of a slot for rows of any width: fbgemm's kernels want a multiple of 4."""
    return -(-dim // 4) * 4


@dataclass(frozen=True)
class RowLayout:
    """A record: `width_of(dim)` weights, then the optimizer state in fp32, written as elements of one type.

    Attributes:
        dim: Weights per row. The other columns, in record and slot, are zero padding.
        dtype: Type of the weights: `torch.float32`, `torch.float16`, or `torch.int8` for `int8_rows`.
        state: fp32 values per record by state name, in storage order; a width of 1 is row-wise state.
    """

    dim: int
    dtype: torch.dtype
    state: Mapping[str, int]

    @property
    def columns(self) -> int:
        """Weights per record, as many as a slot has."""
        return width_of(self.dim)

    @property
    def element(self) -> torch.dtype:
        """Type of the elements of a record: that of the weights, int32 for `int8_rows`."""
        return torch.int32 if self.dtype is torch.int8 else self.dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights per record, for int8 with scale and bias."""
        return self.columns * self.dtype.itemsize + (int8_rows.TAIL_BYTES if self.dtype is torch.int8 else 0)

    @property
    def record_bytes(self) -> int:
        return self.weight_bytes + 4 * sum(self.state.values())

    @property
    def width(self) -> int:
        return self.record_bytes // self.element.itemsize

    def empty(self, records: int, *, pin: bool = False, device: torch.device | None = None) -> Tensor:
        """Room for records, on the host if no device is named, `[records, width]`."""
        return torch.empty(records, self.width, dtype=self.element, pin_memory=pin, device=device)

    def weights(self, records: Tensor) -> Tensor:
        """The weights in records, `[n, columns]`: a view in `dtype`, or int8 decoded to fp32."""
        kept = self._kept(records)
        if self.dtype is torch.int8:
            weights = int8_rows.decode(kept.contiguous().view(torch.uint8))
            weights[:, self.dim :].zero_()
            return weights
        return kept.view(self.dtype)

    def set_weights(self, records: Tensor, weights: Tensor) -> None:
        """Write weights, `[n, dim]` or `[n, columns]`, into records, rounded to `dtype`."""
        kept = self._kept(records)
        if self.dtype is torch.int8:
            # padding with the first column does not change the range of the row
            shown = torch.arange(self.columns, device=weights.device)
            shown[self.dim :] = 0
            padded = weights if self.columns == self.dim else weights.index_select(1, shown)
            kept.copy_(int8_rows.encode(padded.float()).view(torch.int32))
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
