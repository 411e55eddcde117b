"""Rows in int8: fbgemm's row-wise quantisation, with a scale that makes a second way there and back change nothing.

A row of `dim` values is kept as `dim` codes of 8 bits, a scale and a bias in fp32; an element is `bias + code * scale`.
fbgemm takes the row's smallest value for the bias and 1/255 of its range for the scale. Its own scale is not the one
that the decoded row gives again: one row in ten changed on a second way, some on every way. A scale of 16 significant
bits is: 255 times it needs no rounding, and what the decoded maximum is rounded by, if anything, is too small to move
it or gives the old maximum.
"""

import fbgemm_gpu  # noqa: F401 - registers the operators
import torch
from torch import Tensor

TAIL_BYTES = 8
"""Of a row beside its codes: scale and bias, fp32."""

_UP = 2.0**40
"""fbgemm adds an epsilon to a row's range, on a CPU 1e-8: by this power of two nothing is rounded, and it is 1e-20."""
_LEAST_SCALE = 2e-20
"""Below this the epsilon would show in the codes; such a row is kept as its smallest value."""
_DROPPED_BITS = 8


def encode(weights: Tensor) -> Tensor:
    """Compress rows.

    An element comes back within `(max - min) / 505 + 2**-24 * |element| + 1e-17` of what it was, with the extremes of
    its row. fbgemm alone has 510 in place of 505. Rows of one value come back as they were, and so does every row that
    came back once.

    Args:
        weights: fp32 `[n, dim]`, `dim` a multiple of 4, all below 1e26 in size: a row with more, with an infinity or a
            NaN comes back as NaN, so that nobody overlooks it.

    Returns:
        uint8 `[n, dim + 8]` on the same device.
    """
    raised = weights.contiguous() * _UP  # the operator takes any tensor for a contiguous one
    rows: Tensor = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(raised)
    tail = rows[:, -TAIL_BYTES:].view(torch.float32)
    scale, bias = tail[:, 0], tail[:, 1]
    half, mask = 1 << _DROPPED_BITS - 1, -1 << _DROPPED_BITS
    rounded = scale.view(torch.int32).add(half).bitwise_and_(mask).view(torch.float32) / _UP
    scale.copy_(rounded.masked_fill_(rounded < _LEAST_SCALE, 0.0))
    # fbgemm looks past a NaN, and a sum does not
    bias.div_(_UP).add_(raised.sum(dim=1).mul_(0.0))
    return rows


def decode(rows: Tensor) -> Tensor:
    """The rows, fp32 `[n, dim]`, of what `encode` gave."""
    weights: Tensor = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(rows)
    return weights
