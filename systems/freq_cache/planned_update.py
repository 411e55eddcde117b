"""Updating the rows of a batch on a CPU from its plan, which knows the distinct rows already.

fbgemm's backward finds them again by sorting the ids, and that takes most of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.contract import OptimizerKind
from systems.freq_cache.compiled import compiled, multiply_add, prefetch_in
from systems.freq_cache.hands import in_parts

KINDS = (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD)

_SGD, _ROWWISE = 0, 1
_AHEAD = 8
_LINE = 16
"""fp32 values per cache line."""


class Distinct(NamedTuple):
    """The distinct rows of a batch: their slots, int32 `[u]`, and which of them each id asks for, int32 `[n]`.

    Numbered in order of first occurrence, feature after feature.
    """

    slots: NDArray[np.int32]
    inverse: NDArray[np.int32]


class PlannedUpdate:
    """Applies an optimizer to slots with fp32 rows that were pooled by SUM without weights.

    The gradients of a row are summed in the order of its ids and all is rounded to fp32, as in fbgemm's kernels; SGD
    gives the same bits as they do.

    Args:
        weights: Of the slots, fp32 `[slots, dim]`.
        state: Of the slots, fp32 `[slots]`, for Adagrad `[slots, dim]`, for SGD None.
        kind: One of `KINDS`.
        table_of_feature: Rising; features of two tables share no row.
    """

    def __init__(
        self, weights: Tensor, state: Tensor | None, *, kind: OptimizerKind, table_of_feature: Sequence[int]
    ) -> None:
        self._weights: NDArray[np.float32] = weights.detach().numpy()
        values = torch.empty(0, 0) if state is None else state.detach()
        self._state: NDArray[np.float32] = (
            values.view(values.shape[0], -1).numpy() if values.numel() else values.numpy()
        )
        self._kind = KINDS.index(kind)
        self._begins = np.searchsorted(table_of_feature, np.arange(max(table_of_feature) + 2))
        self._sums: dict[int, NDArray[np.float32]] = {}

    def attach(self, pooled: Tensor, offsets: Tensor, distinct: Distinct, hyper: Mapping[str, float]) -> Tensor:
        """`pooled`, `[batch, features * dim]`, whose backward updates the rows of its batch.

        Args:
            pooled: Rows pooled without autograd.
            offsets: Where bags begin, feature after feature, int64 `[features * batch + 1]`.
            distinct: Its rows.
            hyper: `lr` and `eps`.
        """
        anchor = torch.empty(0, requires_grad=True)  # what makes autograd come by
        attached: Tensor = _Attached.apply(  # type: ignore[no-untyped-call]
            anchor, pooled, self, offsets.numpy(), distinct, dict(hyper)
        )
        return attached

    def update(
        self, gradient: Tensor, offsets: NDArray[np.int64], distinct: Distinct, hyper: Mapping[str, float]
    ) -> None:
        """Update the rows of a batch by the gradient of what was pooled."""
        bags = gradient.contiguous().numpy()
        ends = offsets[self._begins * bags.shape[0]]  # of the ids of each table
        most = int(np.diff(ends).max())
        lr, eps = np.float32(hyper["lr"]), np.float32(hyper["eps"])

        def some_tables(part: int, parts: int) -> None:
            first, last = (int(np.searchsorted(ends[:-1], ends[-1] * at / parts)) for at in (part, part + 1))
            sums = self._sums.get(part)
            if sums is None or sums.shape[0] < most:
                sums = self._sums[part] = np.empty((most, self._weights.shape[1]), np.float32)
            begins = self._begins[first : last + 1]
            _update(bags, offsets, *distinct, begins, sums, self._weights, self._state, self._kind, lr, eps)

        in_parts(some_tables)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, pooled: Tensor, update: PlannedUpdate, *batch: Any) -> Tensor:
        ctx.update, ctx.batch = update, batch
        return pooled.view_as(pooled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.update.update(gradient, *ctx.batch)
        return (None,) * (3 + len(ctx.batch))


@compiled
def _update(bags, offsets, slots, inverse, begins, sums, weights, state, kind, lr, eps):
    """Update the rows of the tables whose features begin at `begins`."""
    batch = bags.shape[0]
    seen = 0
    for i in range(offsets[begins[0] * batch]):
        seen = max(seen, inverse[i] + 1)
    for table in range(begins.size - 1):
        first = seen
        for feature in range(begins[table], begins[table + 1]):
            seen = _sum(bags, feature, offsets, inverse, first, seen, sums)
        if kind == _SGD:
            _sgd(weights, slots[first:seen], sums, lr)
        elif kind == _ROWWISE:
            _rowwise_adagrad(weights, state, slots[first:seen], sums, lr, eps)
        else:
            _adagrad(weights, state, slots[first:seen], sums, lr, eps)


@compiled
def _sum(bags, feature, offsets, inverse, first, seen, sums):
    """Sum the gradients of every row that a feature asks for, from row `first` on; rows from `seen` on are new."""
    batch, dim = bags.shape[0], sums.shape[1]
    column = feature * dim
    for bag in range(batch):
        if bag + _AHEAD < batch:
            for d in range(0, dim, _LINE):
                prefetch_in(bags, bag + _AHEAD, column + d)
        for i in range(offsets[feature * batch + bag], offsets[feature * batch + bag + 1]):
            unique = inverse[i]
            row = np.uint64(unique - first)
            if unique == seen:
                seen += 1
                for d in range(dim):
                    sums[row, np.uint64(d)] = bags[np.uint64(bag), np.uint64(column + d)]
            else:
                for d in range(dim):
                    sums[row, np.uint64(d)] += bags[np.uint64(bag), np.uint64(column + d)]
    return seen


@compiled
def _ask_ahead(values, slots, i):
    if i + _AHEAD < slots.size:
        for d in range(0, values.shape[1], _LINE):
            prefetch_in(values, slots[i + _AHEAD], d)


@compiled
def _sgd(weights, slots, sums, lr):
    for i in range(slots.size):
        _ask_ahead(weights, slots, i)
        slot, row = np.uint64(slots[i]), np.uint64(i)
        for d in range(weights.shape[1]):
            at = np.uint64(d)
            weights[slot, at] = multiply_add(-lr, sums[row, at], weights[slot, at])


@compiled
def _rowwise_adagrad(weights, state, slots, sums, lr, eps):
    """One state a row: the mean of its squared gradients, summed over steps."""
    dim = weights.shape[1]
    for i in range(slots.size):
        _ask_ahead(weights, slots, i)
        _ask_ahead(state, slots, i)
        slot, row = np.uint64(slots[i]), np.uint64(i)
        a = b = c = e = np.float32(0)
        for d in range(0, dim, 4):  # four sums, for one would wait for itself
            at = np.uint64(d)
            a += sums[row, at] * sums[row, at]
            b += sums[row, at + np.uint64(1)] * sums[row, at + np.uint64(1)]
            c += sums[row, at + np.uint64(2)] * sums[row, at + np.uint64(2)]
            e += sums[row, at + np.uint64(3)] * sums[row, at + np.uint64(3)]
        state[slot, 0] += ((a + b) + (c + e)) / np.float32(dim)
        scale = lr / (np.sqrt(state[slot, 0]) + eps)
        for d in range(dim):
            weights[slot, np.uint64(d)] -= scale * sums[row, np.uint64(d)]


@compiled
def _adagrad(weights, state, slots, sums, lr, eps):
    for i in range(slots.size):
        _ask_ahead(weights, slots, i)
        _ask_ahead(state, slots, i)
        slot, row = np.uint64(slots[i]), np.uint64(i)
        for d in range(weights.shape[1]):
            at = np.uint64(d)
            state[slot, at] += sums[row, at] * sums[row, at]
            weights[slot, at] -= lr * sums[row, at] / (np.sqrt(state[slot, at]) + eps)
