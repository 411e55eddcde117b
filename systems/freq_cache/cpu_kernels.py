"""Looking up and updating slots on a CPU with what the plan of a batch knows already.

fbgemm's backward on a CPU finds the distinct rows of a batch by sorting its ids, which takes most of its time; the
planner has found them. Rows stay in the order of first occurrence, so the processor's caches are made use of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.contract import OptimizerKind
from systems.freq_cache.compiled import add_values, compiled, copy_values, multiply_add, prefetch_in
from systems.freq_cache.planner.threads import in_parts, parts_of

Floats = NDArray[np.float32]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

KINDS = (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD)

_SGD, _ROWWISE = 0, 1
_AHEAD = 8
_IDS_AHEAD = 32
_PART_IDS = 1 << 13
"""Ids that are worth a thread."""
_LINE = 16
"""fp32 values per cache line."""
_SKEW = 1.25
"""Rows that occur early in a batch occur more often: of two threads the first takes 42 % of them."""


class Distinct(NamedTuple):
    """The distinct rows of a batch: their slots, int32 `[u]`, and which of them each id asks for, int32 `[n]`.

    Numbered in order of first occurrence, feature after feature.
    """

    slots: Int32s
    inverse: Int32s


class CpuKernels:
    """Pools slots with fp32 rows by SUM, without weights, and applies an optimizer to them.

    Rows and gradients are summed in the order of their ids and all is rounded to fp32, as in fbgemm's kernels; lookups
    and SGD give the same bits as they do.

    Args:
        weights: Of the slots, fp32 `[slots, dim]`.
        state: Of the slots, fp32 `[slots]`, for Adagrad `[slots, dim]`, for SGD None.
        kind: One of `KINDS`.
        table_of_feature: Rising; features of two tables share no row.
    """

    def __init__(
        self, weights: Tensor, state: Tensor | None, *, kind: OptimizerKind, table_of_feature: Sequence[int]
    ) -> None:
        self._weights: Floats = weights.detach().numpy()
        values = torch.empty(1, 0) if state is None else state.detach()
        self._state: Floats = values.view(values.shape[0], -1 if values.numel() else 0).numpy()
        self._kind = KINDS.index(kind)
        self._features = len(table_of_feature)
        self._begins = np.searchsorted(table_of_feature, np.arange(max(table_of_feature) + 2))
        self._sums: dict[int, Floats] = {}

    def look_up(self, slots: Tensor, offsets: Tensor, distinct: Distinct, hyper: Mapping[str, float]) -> Tensor:
        """The pooled rows of a batch, fp32 `[batch, features * dim]`. Backward updates them, unless gradients are off.

        Args:
            slots: Of every id, int32 `[n]`.
            offsets: Where bags begin, feature after feature, int64 `[features * batch + 1]`.
            distinct: The same by distinct row.
            hyper: `lr` and `eps`.
        """
        batch = (offsets.numel() - 1) // self._features
        pooled = torch.empty(batch, self._features * self._weights.shape[1])
        out, of_id, bounds = pooled.numpy(), slots.numpy(), offsets.numpy()

        def some_bags(part: int, parts: int) -> None:
            _pool(self._weights, of_id, bounds, out, batch * part // parts, batch * (part + 1) // parts)

        in_parts(some_bags, parts_of(of_id.size, least=_PART_IDS))
        if not torch.is_grad_enabled():
            return pooled
        anchor = torch.empty(0, requires_grad=True)  # what makes autograd come by
        attached: Tensor = _Attached.apply(  # type: ignore[no-untyped-call]
            anchor, pooled, self, bounds, distinct, dict(hyper)
        )
        return attached

    def update(self, gradient: Tensor, offsets: Int64s, distinct: Distinct, hyper: Mapping[str, float]) -> None:
        """Update the rows of a batch by the gradient of what was pooled."""
        bags = gradient.detach().contiguous().numpy()
        rates = np.float32(hyper["lr"]), np.float32(hyper["eps"])
        parts = parts_of(distinct.inverse.size, least=_PART_IDS)
        by = self._by_tables if parts < self._begins.size else self._by_rows
        by(bags, offsets, distinct, rates, parts)

    def _by_tables(self, bags: Floats, offsets: Int64s, distinct: Distinct, rates: tuple[Any, Any], parts: int) -> None:
        """Every thread takes some tables, one after the other: the sums of one table stay in the processor's cache."""
        ends = offsets[self._begins * bags.shape[0]]  # of the ids of each table
        most = int(np.diff(ends).max())

        def some_tables(part: int, parts: int) -> None:
            first, last = (int(np.searchsorted(ends[:-1], ends[-1] * at / parts)) for at in (part, part + 1))
            begins, sums = self._begins[first : last + 1], self._room(part, most)
            seen = int(distinct.inverse[: ends[first]].max(initial=-1)) + 1
            _tables(bags, begins, offsets, *distinct, seen, sums, self._weights, self._state, self._kind, *rates)

        in_parts(some_tables, parts)

    def _by_rows(self, bags: Floats, offsets: Int64s, distinct: Distinct, rates: tuple[Any, Any], parts: int) -> None:
        """Every thread takes some rows, and goes through all ids for them."""
        rows = distinct.slots.size

        def some_rows(part: int, parts: int) -> None:
            first, last = (int(rows * (at / parts) ** _SKEW) for at in (part, part + 1))
            sums = self._room(part, last - first)
            _sum(bags, 0, self._features, offsets, distinct.inverse, first, last, sums)
            mine = slice(first, last)
            _apply(self._weights, self._state, distinct.slots[mine], sums, self._kind, *rates)

        in_parts(some_rows, parts)

    def _room(self, part: int, rows: int) -> Floats:
        room = self._sums.get(part)
        if room is None or room.shape[0] < rows:
            room = self._sums[part] = np.empty((rows, self._weights.shape[1]), np.float32)
        return room


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, pooled: Tensor, kernels: CpuKernels, *batch: Any) -> Tensor:
        ctx.kernels, ctx.batch = kernels, batch
        return pooled.view_as(pooled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.kernels.update(gradient, *ctx.batch)
        return (None,) * (3 + len(ctx.batch))


@compiled
def _pool(weights, slots, offsets, out, begin, end):
    """Sum the rows of the bags of samples `begin` to `end`."""
    batch, dim = out.shape[0], weights.shape[1]
    features = out.shape[1] // dim
    ahead = 1 + _IDS_AHEAD // features
    for bag in range(begin, end):
        for feature in range(features):
            here = feature * batch + bag
            if bag + ahead < end and offsets[here + ahead] < slots.size:
                for d in range(0, dim, _LINE):
                    prefetch_in(weights, slots[offsets[here + ahead]], d)
            column = feature * dim
            first, last = offsets[here], offsets[here + 1]
            if first == last:
                for d in range(dim):
                    out[np.uint64(bag), np.uint64(column + d)] = np.float32(0)
                continue
            copy_values(out, bag, column, weights, slots[first], 0, dim)
            for i in range(first + 1, last):
                add_values(out, bag, column, weights, slots[i], 0, dim)


@compiled
def _tables(bags, begins, offsets, slots, inverse, seen, sums, weights, state, kind, lr, eps):
    """Update the rows of the tables whose features begin at `begins`; row `seen` is their first."""
    for table in range(begins.size - 1):
        new = _sum(bags, begins[table], begins[table + 1], offsets, inverse, seen, slots.size, sums)
        _apply(weights, state, slots[seen : seen + new], sums, kind, lr, eps)
        seen += new


@compiled
def _sum(bags, begin, end, offsets, inverse, first, last, sums):
    """Sum the gradients of those of the rows `first` to `last` that features `begin` to `end` ask for.

    Row `first` goes to `sums[0]`. Returns the number of rows.
    """
    batch, dim = bags.shape[0], sums.shape[1]
    count = 0
    for i in range(offsets[begin * batch], offsets[end * batch]):
        count = max(count, min(inverse[i] + 1, last) - first)
    for new in range(count):
        for d in range(dim):
            sums[np.uint64(new), np.uint64(d)] = np.float32(0)
    for feature in range(begin, end):
        column = feature * dim
        for bag in range(batch):
            if bag + _AHEAD < batch:
                for d in range(0, dim, _LINE):
                    prefetch_in(bags, bag + _AHEAD, column + d)
            for i in range(offsets[feature * batch + bag], offsets[feature * batch + bag + 1]):
                if first <= inverse[i] < last:
                    add_values(sums, inverse[i] - first, 0, bags, bag, column, dim)
    return count


@compiled
def _apply(weights, state, slots, sums, kind, lr, eps):
    if kind == _SGD:
        _sgd(weights, slots, sums, lr)
    elif kind == _ROWWISE:
        _rowwise_adagrad(weights, state, slots, sums, lr, eps)
    else:
        _adagrad(weights, state, slots, sums, lr, eps)


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
