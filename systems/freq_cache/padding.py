"""Rows of any width in slots whose width is a multiple of 4, which fbgemm's kernels want."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache.tiers.layout import width_of


class Padding:
    """What is done to lookups so that nobody sees the columns of a slot beyond those of its row.

    These are zero and get no gradient, so no optimizer changes them. But row-wise Adagrad divides the squares of a
    gradient by the columns of a slot where it should by those of a row. There the gradient is multiplied by
    `sqrt(columns / dim)` and the learning rate divided by it: then the state is the row's own, and the step the same.

    Args:
        dim: Columns of a row.
        optimizer: Of the rows.
    """

    def __init__(self, dim: int, optimizer: SparseOptimizer) -> None:
        self._dim, self._columns = dim, width_of(dim)
        by_row = optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
        self._scale = (self._columns / dim) ** 0.5 if by_row else 1.0

    def optimizer(self, optimizer: SparseOptimizer) -> SparseOptimizer:
        """The optimizer that trains slots as this one is to train rows."""
        return replace(
            optimizer,
            lr=optimizer.lr / self._scale,
            weight_decay=optimizer.weight_decay * self._scale,
            max_gradient=optimizer.max_gradient * self._scale,
        )

    def hyper(self, values: Mapping[str, float]) -> dict[str, float]:
        """The same for hyper-parameters by name."""
        return {name: value / self._scale if name == "lr" else value for name, value in values.items()}

    def cut(self, pooled: Tensor) -> Tensor:
        """What slots gave, `[n, features * columns]`, without the columns beyond: `[n, features * dim]`."""
        if self._columns == self._dim:
            return pooled
        if self._scale != 1 and pooled.requires_grad:
            pooled.register_hook(partial(_times, self._scale))
        by_feature: Tensor = pooled.unflatten(1, (-1, self._columns))
        return by_feature[:, :, : self._dim].flatten(1)

    def weights(self, weights: Tensor | None) -> Tensor | None:
        """Per-sample weights whose gradient is that of rows, not of slots."""
        if weights is None or self._scale == 1 or not weights.requires_grad:
            return weights
        seen = weights.view_as(weights)
        seen.register_hook(partial(_times, 1 / self._scale))
        return seen


def _times(factor: float, gradient: Tensor) -> Tensor:
    return gradient * factor
