"""The update inside backward, presented as a `torch.optim.Optimizer`, because learning-rate schedules need one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torchrec import EmbeddingBagConfig

from systems.contract import SystemSpec

Values = Mapping[str, float]

_NAMES = ("lr", "eps", "beta1", "beta2")


def group_of(spec: SystemSpec, table: EmbeddingBagConfig) -> str:
    """The name of a table's group: empty, or the first table that has the same optimizer of its own."""
    own = spec.optimizer_of(table)
    return "" if own == spec.optimizer else next(t.name for t in spec.tables if spec.optimizer_of(t) == own)


class FusedOptimizer(torch.optim.Optimizer):
    """Passes on the hyper-parameters in `param_groups`; rows are updated during backward, not in `step`.

    Hand it to a scheduler of `torch.optim.lr_scheduler` and call `step()` as usual. Values changed in `param_groups`
    are those of the next lookup. The first group is that of all tables without an optimizer of their own; the others
    have a `name`, the first of their tables.

    Args:
        spec: Has the optimizers.
        apply: Takes the name of a group and its new values.
    """

    def __init__(self, spec: SystemSpec, apply: Callable[[str, Values], None]) -> None:
        self._apply = apply
        optimizers = {"": spec.optimizer, **{group_of(spec, t): spec.optimizer_of(t) for t in spec.tables}}
        values = {group: {name: getattr(one, name) for name in _NAMES} for group, one in optimizers.items()}
        self._applied = {group: dict(chosen) for group, chosen in values.items()}
        nothing = [nn.Parameter(torch.empty(0), requires_grad=False) for _ in values]
        groups = [
            {"params": [none], "name": group, **chosen}
            for none, (group, chosen) in zip(nothing, values.items(), strict=True)
        ]
        super().__init__(groups, dict(values[""]))

    def values_of(self, group: str) -> dict[str, float]:
        """The hyper-parameters of a group at the next lookup."""
        found = next(one for one in self.param_groups if one["name"] == group)
        return {name: float(found[name]) for name in _NAMES}

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters of the next lookup, those of a group with a name as `<name>.<hyper-parameter>`."""
        return {
            f"{group}.{name}" if group else name: value
            for group in self._applied
            for name, value in self.values_of(group).items()
        }

    def restore(self, hyper: Values) -> None:
        """Go on with hyper-parameters as `hyper` gave them; what they do not name stays."""
        for group in self.param_groups:
            prefix = f"{group['name']}." if group["name"] else ""
            group.update({name: hyper[prefix + name] for name in _NAMES if prefix + name in hyper})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401 - torch's signature
        """Do nothing: backward has updated the rows."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient is kept."""

    def pass_on(self) -> None:
        """Apply what changed in `param_groups` since the last call."""
        for group, applied in self._applied.items():
            changed = {name: value for name, value in self.values_of(group).items() if value != applied[name]}
            if changed:
                applied.update(changed)
                self._apply(group, changed)
