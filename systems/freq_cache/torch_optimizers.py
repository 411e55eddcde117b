"""Optimizers given as torch gives them: a class with its arguments, as `apply_optimizer_in_backward` takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torchrec.optim import optimizers as placeholders
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from systems.contract import OptimizerKind, SparseOptimizer

_KINDS: Mapping[type[torch.optim.Optimizer], OptimizerKind] = {
    torch.optim.SGD: OptimizerKind.SGD,
    torch.optim.Adagrad: OptimizerKind.ADAGRAD,
    torch.optim.Adam: OptimizerKind.ADAM,
    torch.optim.AdamW: OptimizerKind.ADAM,
    RowWiseAdagrad: OptimizerKind.ROWWISE_ADAGRAD,
}
_MEANT = {
    placeholders.SGD: torch.optim.SGD,
    placeholders.Adagrad: torch.optim.Adagrad,
    placeholders.Adam: torch.optim.AdamW,  # torchrec's stands for fbgemm's, which decays rows as AdamW does
}
"""Whose arguments torchrec's placeholders take."""
_TAKEN = {"lr", "eps", "betas", "weight_decay"}
_HOW_ONLY = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
"""Arguments that change how torch computes a step, not the step."""


def sparse_optimizer(
    optimizer: SparseOptimizer | type[torch.optim.Optimizer], arguments: Mapping[str, Any]
) -> SparseOptimizer:
    """The fused optimizer that takes the steps of one of torch's.

    Args:
        optimizer: SGD, Adagrad, Adam or AdamW of `torch.optim`, torchrec's RowWiseAdagrad, or its placeholders for
            fbgemm's optimizers. Of a `SparseOptimizer` the arguments replace the fields.
        arguments: Of the class; torch's own defaults hold for others. As torchrec has it, `gradient_clipping` and
            `max_gradient` may be among them.

    Raises:
        ValueError: fbgemm has no such optimizer or no such argument; the message says what to change.
        TypeError: the class has no such argument.
    """
    if isinstance(optimizer, SparseOptimizer):
        return replace(optimizer, **arguments)
    given = dict(arguments)
    clips = given.pop("gradient_clipping", "max_gradient" in given)
    max_gradient = given.pop("max_gradient", 1.0)
    meant = _MEANT.get(optimizer, optimizer)
    kind = _KINDS.get(meant)
    if kind is None:
        raise ValueError(
            f"{optimizer.__name__} is not fused into backward: use {', '.join(sorted(one.__name__ for one in _KINDS))}"
        )
    chosen = meant([nn.Parameter(torch.zeros(1, 1))], **given).defaults
    if unknown := sorted(set(given) - set(chosen)):
        raise TypeError(f"{optimizer.__name__} has no argument {', '.join(unknown)}")
    other = [name for name, value in chosen.items() if name not in _TAKEN | _HOW_ONLY and value]
    if other:
        raise ValueError(f"fbgemm's {kind} has no {', '.join(other)}: leave it out")
    decays = kind is OptimizerKind.ROWWISE_ADAGRAD or meant is torch.optim.AdamW or chosen.get("decoupled_weight_decay")
    if chosen["weight_decay"] and not decays:
        raise ValueError(f"{optimizer.__name__} with weight_decay is not fused: use RowWiseAdagrad or AdamW, or 0")
    betas = chosen.get("betas", (0.9, 0.999))
    return SparseOptimizer(
        kind=kind,
        lr=float(chosen["lr"]),
        eps=chosen.get("eps", 1e-8),
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=chosen["weight_decay"],
        max_gradient=max_gradient if clips else math.inf,
    )
