"""Conversion of torch's optimizers to fused ones, and a torch optimizer for learning-rate schedules."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torchrec import EmbeddingBagConfig
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from systems.contract import OptimizerKind, SparseOptimizer, SystemSpec
from systems.spec import check_hyper_parameters

Values = Mapping[str, float]

_SCHEDULED = ("lr", "eps", "beta1", "beta2")
_KINDS: Mapping[type[torch.optim.Optimizer], OptimizerKind] = {
    torch.optim.SGD: OptimizerKind.SGD,
    torch.optim.Adagrad: OptimizerKind.ADAGRAD,
    torch.optim.Adam: OptimizerKind.ADAM,
    torch.optim.AdamW: OptimizerKind.ADAM,
    RowWiseAdagrad: OptimizerKind.ROWWISE_ADAGRAD,
}
_TAKEN = {"lr", "eps", "betas", "weight_decay"}
_HOW_ONLY = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
"""Arguments that change how torch computes a step, not the step."""


def sparse_optimizer(
    optimizer: SparseOptimizer | type[torch.optim.Optimizer], arguments: Mapping[str, Any]
) -> SparseOptimizer:
    """The fused optimizer that takes the same steps as one of torch's.

    Args:
        optimizer: SGD, Adagrad, Adam or AdamW of `torch.optim`, or torchrec's RowWiseAdagrad. With a `SparseOptimizer`
            the arguments replace its fields.
        arguments: Arguments of the class; torch's defaults hold for others. As in torchrec, `gradient_clipping` and
            `max_gradient` are accepted.

    Raises:
        ValueError: fbgemm has no such optimizer or no such argument; the message says what to change.
        TypeError: the class has no such argument.
    """
    if isinstance(optimizer, SparseOptimizer):
        return replace(optimizer, **arguments)
    given = dict(arguments)
    clips = given.pop("gradient_clipping", "max_gradient" in given)
    max_gradient = given.pop("max_gradient", 1.0)
    kind = _KINDS.get(optimizer)
    if kind is None:
        raise ValueError(
            f"{optimizer.__name__} is not fused into backward: use {', '.join(sorted(one.__name__ for one in _KINDS))}"
        )
    chosen = optimizer([nn.Parameter(torch.zeros(1, 1))], **given).defaults
    if unknown := sorted(set(given) - set(chosen)):  # RowWiseAdagrad takes any
        raise TypeError(f"{optimizer.__name__} has no argument {', '.join(unknown)}")
    other = [name for name, value in chosen.items() if name not in _TAKEN | _HOW_ONLY and value]
    if other:
        raise ValueError(f"fbgemm's {kind} has no {', '.join(other)}: leave it out")
    decays = optimizer in {RowWiseAdagrad, torch.optim.AdamW} or chosen.get("decoupled_weight_decay")
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


def group_of(spec: SystemSpec, table: EmbeddingBagConfig) -> str:
    """The name of a table's group: empty, or the first table that has the same optimizer of its own."""
    own = spec.optimizer_of(table)
    return "" if own == spec.optimizer else next(t.name for t in spec.tables if spec.optimizer_of(t) == own)


class FusedOptimizer(torch.optim.Optimizer):
    """Holds the tables' hyper-parameters in `param_groups`; backward updates the rows, `step` does nothing.

    Pass it to a scheduler of `torch.optim.lr_scheduler` and call `step()` as usual. Values changed in `param_groups`
    apply from the next lookup on. The first group holds all tables without an optimizer of their own; the other groups
    have a `name`, the first of their tables.
    """

    def __init__(self, spec: SystemSpec) -> None:
        optimizers = {"": spec.optimizer, **{group_of(spec, t): spec.optimizer_of(t) for t in spec.tables}}
        self._applied = {group: {name: getattr(one, name) for name in _SCHEDULED} for group, one in optimizers.items()}
        nothing = [nn.Parameter(torch.empty(0), requires_grad=False) for _ in optimizers]
        groups = [
            {"params": [none], "name": group, **values}
            for none, (group, values) in zip(nothing, self._applied.items(), strict=True)
        ]
        super().__init__(groups, dict(self._applied[""]))

    def values_of(self, group: str) -> dict[str, float]:
        """The hyper-parameters of a group at the next lookup.

        Raises:
            ValueError: as `check_hyper_parameters`.
        """
        found = next(one for one in self.param_groups if one["name"] == group)
        check_hyper_parameters({name: found[name] for name in _SCHEDULED})
        return {name: float(found[name]) for name in _SCHEDULED}

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters of the next lookup; keys of named groups are `<name>.<hyper-parameter>`."""
        return {_prefix(group) + name: float(group[name]) for group in self.param_groups for name in _SCHEDULED}

    def restore(self, hyper: Values) -> None:
        """Set hyper-parameters from a result of `hyper`; others keep their values."""
        for group in self.param_groups:
            prefix = _prefix(group)
            group.update({name: hyper[prefix + name] for name in _SCHEDULED if prefix + name in hyper})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401 - torch's signature
        """Do nothing: backward has updated the rows."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient is kept."""

    def changed(self) -> dict[str, Values]:
        """Values in `param_groups` that differ from the last `applied` ones, by group name."""
        found: dict[str, Values] = {}
        for group, applied in self._applied.items():
            changed = {name: value for name, value in self.values_of(group).items() if value != applied[name]}
            if changed:
                found[group] = changed
        return found

    def applied(self, group: str, values: Values) -> None:
        """Note that all caches of a group have these values. Called after setting them, so an interrupt loses none."""
        self._applied[group].update(values)


def _prefix(group: Mapping[str, Any]) -> str:
    return f"{group['name']}." if group["name"] else ""
