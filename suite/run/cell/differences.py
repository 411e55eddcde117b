"""How far apart two systems may be, and are: in rows, in optimizer state, in any number."""

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
"""Largest absolute difference of a row where sums are not taken in the reference's order.

Adagrad and Adam divide a gradient by its own size: a row moves by about the learning rate, and one whose gradient
nearly cancels carries the rounding of its terms along. A lost, doubled or stale update shows as the learning rate; a
hundredth of that is allowed. On a CPU, over 25 seeds and more of all workloads, fbgemm came within 2e-5 with row-wise
Adagrad and was bitwise equal with SGD; over 72 runs of two workloads it came within 7e-6 with Adagrad.
"""
DEVICE_LOSS_TOLERANCE = 1e-6
"""Of a loss near 0.7 that a device sums in another order: seventeen of its last digits in fp32."""
STATE_TOLERANCE = 0.01
"""Of optimizer state, relative to its size: squared gradients are small, an absolute bound would allow anything."""
_STATE_FLOOR = 1e-3
"""Share of a table's largest state below which a difference is measured against that share."""


def tolerance(system: EmbeddingSystem) -> float:
    """0 where the arithmetic is the reference's own: exact systems with SGD on a CPU. The tables pool by sum.

    Where a slow tier rounds rows, its reference does too. From sums in another order a value may be rounded to the
    other neighbour: that is twice the error of one way there and back, of the largest row that the system started with.
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
    """Largest difference of a loss where `allowed` is that of a row.

    A tenth of it, and on a device no less than rounding; of an approximate system all of it, for a parameter that many
    rows share moves all of them.
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
    """Largest difference, NaN where there is one; infinite where one side lacks something."""
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
        name: Begins the checks' names.
        left: The system under test.
        right: What it is compared with.
        allowed: Largest absolute difference of a row; 0 demands that state is equal too.
    """
    ours, theirs = snapshot(left), snapshot(right)
    rows, their_rows = (
        {name: side.pop(name) for name in list(side) if name.endswith(".weight")} for side in (ours, theirs)
    )
    yield check_of(f"{name}, rows", distance(rows, their_rows), allowed)
    if ours or theirs:  # what is left is state
        apart = distance(ours, theirs, relative=True)
        yield check_of(f"{name}, optimizer state", apart, STATE_TOLERANCE if allowed else 0.0)


def check_of(name: str, difference: float, allowed: float) -> Check:
    """Whether a difference, NaN or infinity included, is at most the allowed one."""
    # a NaN on either side must fail, and JSON knows neither NaN nor infinity
    shown = sys.float_info.max if math.isnan(difference) else min(difference, sys.float_info.max)
    passed = shown <= allowed
    detail = "" if passed else f"differs by {difference:.3g}, allowed {allowed:.3g}"
    return Check(name=name, passed=passed, max_difference=shown, tolerance=allowed, detail=detail)
