"""Layout of a row's record: its weights and its optimizer state side by side, so that one copy moves both.

Rows in int8: fbgemm's row-wise quantisation, with a scale that makes a second round trip exact.

A row of `dim` values is kept as `dim` codes of 8 bits, a scale and a bias in fp32; an element is `bias + code * scale`.
fbgemm takes the row's smallest value for the bias and 1/255 of its range for the scale. Encoding the decoded row again
does not reproduce fbgemm's own scale: one row in ten changed in a second round trip, some in every one. A scale of 16
significant bits is reproduced: 255 times it needs no rounding, and the rounding of the decoded maximum, if any, is too
small to change the scale or gives the old maximum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import fbgemm_gpu  # noqa: F401 - registers the operators
import torch
from torch import Tensor

from systems.contract import Rows


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
        if self.dtype is torch.int8:
            weights = decode_int8(kept.contiguous().view(torch.uint8))
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
            kept.copy_(encode_int8(padded.float()).view(torch.int32))
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
        weights: fp32 `[n, dim]`, `dim` a multiple of 4, magnitudes below 1e26: a row with a larger one, an infinity or
            a NaN is decoded as NaN.

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
