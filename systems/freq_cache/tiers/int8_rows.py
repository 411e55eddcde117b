"""Rows in int8: fbgemm's row-wise quantisation, with a scale that makes a second round trip exact.

A row of `dim` values is kept as `dim` codes of 8 bits, a scale and a bias in fp32; an element is `bias + code * scale`.
fbgemm takes the row's smallest value for the bias and 1/255 of its range for the scale. Encoding the decoded row again
does not reproduce fbgemm's own scale: one row in ten changed in a second round trip, some in every one. A scale of 16
significant bits is reproduced: 255 times it needs no rounding, and the rounding of the decoded maximum, if any, is too
small to change the scale or gives the old maximum.
"""

import fbgemm_gpu  # noqa: F401 - registers the operators
import torch
from torch import Tensor

TAIL_BYTES = 8
"""Bytes per row beyond its codes: scale and bias, fp32."""

_UP = 2.0**40
"""fbgemm adds an epsilon to a row's range, on a CPU 1e-8: by this power of two nothing is rounded, and it is 1e-20."""
_LEAST_SCALE = 2e-20
"""Below this the epsilon would show in the codes; such a row is kept as its smallest value."""
_DROPPED_BITS = 8


def encode(weights: Tensor) -> Tensor:
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
    tail = rows[:, -TAIL_BYTES:].view(torch.float32)
    scale, bias = tail[:, 0], tail[:, 1]
    half, mask = 1 << _DROPPED_BITS - 1, -1 << _DROPPED_BITS
    rounded = scale.view(torch.int32).add(half).bitwise_and_(mask).view(torch.float32) / _UP
    scale.copy_(rounded.masked_fill_(rounded < _LEAST_SCALE, 0.0))
    # fbgemm ignores NaN, a sum does not
    bias.div_(_UP).add_(raised.sum(dim=1).mul_(0.0))
    return rows


def decode(rows: Tensor) -> Tensor:
    """Decode the result of `encode` to rows, fp32 `[n, dim]`."""
    weights: Tensor = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(rows)
    return weights
