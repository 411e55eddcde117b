"""Differences between two systems in rows, optimizer state and single numbers, and their tolerances."""

import math
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from suite.records.record import Check
from systems.contract import EmbeddingSystem, OptimizerKind

TOLERANCE = {
    OptimizerKind.SGD: 2e-6,
    OptimizerKind.ROWWISE_ADAGRAD: 5e-4,
    OptimizerKind.ADAGRAD: 5e-4,
    OptimizerKind.ADAM: 1e-4,
}
"""Maximum absolute difference of a row where sums are not taken in the reference's order.

Adagrad and Adam divide a gradient by its own magnitude: a row changes by about the learning rate, and a row whose
gradient nearly cancels amplifies the rounding of its terms. A lost, doubled or stale update makes a difference of the
learning rate; a hundredth of that is allowed. On a CPU, over 25 seeds and more of all workloads, fbgemm differed by at
most 2e-5 with row-wise Adagrad and was bitwise equal with SGD; over 72 runs of two workloads by 7e-6 with Adagrad.
"""
DEVICE_LOSS_TOLERANCE = 1e-6
"""Tolerance of a loss near 0.7 that a device sums in another order: seventeen fp32 units in the last place."""
STATE_TOLERANCE = 0.01
"""Relative tolerance of optimizer state: squared gradients are small, an absolute one would allow anything."""
_STATE_FLOOR = 1e-3
"""Share of a table's largest state below which a difference is measured against that share."""


def tolerance(system: EmbeddingSystem) -> float:
    """Maximum absolute difference of a row; 0 for exact systems with SGD on a CPU, which compute as the reference does.

    Tables pool by sum. Where a slow tier rounds rows, its reference rounds too. After sums in another order a value may
    round to the other neighbour: that is twice the round-trip error of the largest initial row.
    """
    spec = system.spec
    on_cpu_with_sgd = spec.device.type == "cpu" and spec.optimizer.kind is OptimizerKind.SGD
    if system.exact and on_cpu_with_sgd:
        return 0.0
    allowed = TOLERANCE[spec.optimizer.kind]
    if system.row_error and not on_cpu_with_sgd:
        rows = [system.read_rows(name, torch.arange(t.num_embeddings)).weights for name, t in system.tables.items()]
        allowed += 2 * system.row_error * max(float(weights.abs().max()) for weights in rows)
    return allowed


def loss_tolerance(system: EmbeddingSystem, allowed: float) -> float:
    """Maximum difference of a loss, where `allowed` is that of a row.

    A tenth of it, and on a device at least the rounding error; for an approximate system all of it, because a parameter
    that many rows share changes all of them.
    """
    if not system.exact:
        return allowed
    return allowed / 10 if system.spec.device.type == "cpu" else max(allowed / 10, DEVICE_LOSS_TOLERANCE)


def snapshot(system: EmbeddingSystem) -> dict[str, Tensor]:
    """All rows and all optimizer state after a flush, by `table.weight` and `table.state`."""
    system.flush()
    found = {}
    for name, table in system.tables.items():
        rows = system.read_rows(name, torch.arange(table.num_embeddings))
        found[f"{name}.weight"] = rows.weights.clone()
        found.update({f"{name}.{state}": value.clone() for state, value in rows.state.items()})
    return found


def distance(left: dict[str, Tensor], right: dict[str, Tensor], *, relative: bool = False) -> float:
    """Largest difference, NaN if an element is NaN; infinite if one side lacks an entry."""
    if left.keys() != right.keys():
        return float("inf")
    largest = []
    for name, value in right.items():
        apart = (left[name] - value).abs()
        if relative:
            size = value.abs()
            apart /= (size + _STATE_FLOOR * size.max()).clamp(min=torch.finfo(size.dtype).tiny)
        largest.append(apart.max())
    return float(torch.stack(largest).max())


def rows_checks(name: str, left: EmbeddingSystem, right: EmbeddingSystem, allowed: float) -> Iterator[Check]:
    """Compare all rows of the system under test with another's, and all optimizer state where there is any.

    Args:
        name: Prefix of the checks' names.
        left: The system under test.
        right: The system that it is compared with.
        allowed: Maximum absolute difference of a row; 0 requires that state is equal too.
    """
    ours, theirs = snapshot(left), snapshot(right)
    rows, their_rows = (
        {name: side.pop(name) for name in list(side) if name.endswith(".weight")} for side in (ours, theirs)
    )
    yield check_of(f"{name}, rows", distance(rows, their_rows), allowed)
    if ours or theirs:  # the remaining entries are state
        apart = distance(ours, theirs, relative=True)
        yield check_of(f"{name}, optimizer state", apart, STATE_TOLERANCE if allowed else 0.0)


def check_of(name: str, difference: float, allowed: float) -> Check:
    """Check that a difference, which may be NaN or infinite, is at most the allowed one."""
    # a NaN on either side must fail, and JSON has neither NaN nor infinity
    shown = sys.float_info.max if math.isnan(difference) else min(difference, sys.float_info.max)
    passed = shown <= allowed
    detail = "" if passed else f"differs by {difference:.3g}, allowed {allowed:.3g}"
    return Check(name=name, passed=passed, max_difference=shown, tolerance=allowed, detail=detail)
