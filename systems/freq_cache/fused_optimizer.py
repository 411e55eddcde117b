"""The update inside backward, presented as a `torch.optim.Optimizer`, because learning-rate schedules need one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


class FusedOptimizer(torch.optim.Optimizer):
    """Passes on the hyper-parameters in `param_groups`; rows are updated during backward, not in `step`.

    Hand it to a scheduler of `torch.optim.lr_scheduler` and call `step()` as usual. Values changed in `param_groups`
    are those of the next lookup.
    """

    def __init__(self, hyper: Mapping[str, float], apply: Callable[[Mapping[str, float]], None]) -> None:
        self._apply = apply
        self._applied = dict(hyper)
        super().__init__([nn.Parameter(torch.empty(0), requires_grad=False)], dict(hyper))

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters of the next lookup."""
        return {name: float(self.param_groups[0][name]) for name in self._applied}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401 - torch's signature
        """Do nothing: backward has updated the rows."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient is kept."""

    def pass_on(self) -> None:
        """Apply what changed in `param_groups` since the last call."""
        changed = {name: value for name, value in self.hyper.items() if value != self._applied[name]}
        if changed:
            self._applied.update(changed)
            self._apply(changed)
