"""Tables of one kind, looked up and trained together: in fbgemm's kernels, or by autograd in plain PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torchrec import KeyedJaggedTensor, PoolingType

from systems.approximate.composition import Composition
from systems.features import Group, feature_of_ids
from systems.spec import OptimizerKind, SparseOptimizer, SystemSpec
from systems.tbe import build_tbe, tbe_states

_OUTSIDE = 2**31 - 1
"""A row that no matrix has: fbgemm refuses it, on a CPU at once, on CUDA in its kernel, so that nothing waits."""


@dataclass(frozen=True)
class Parameter:
    """One live parameter matrix and its optimizer state by name: the system's own tensors, not copies."""

    values: Tensor
    state: Mapping[str, Tensor]


class Part(ABC):
    """Tables that are composed in one way, of one pooling and one width."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        self.group = group
        self.compositions = compositions
        self.spec = spec
        self.pooling: PoolingType = group.tables[0].pooling
        self._rows = torch.tensor([compositions[t].rows for t in group.table_of_feature], device=spec.device)

    @abstractmethod
    def live(self) -> list[Mapping[str, Parameter]]:
        """The parameters of each table as they are, by name."""

    @abstractmethod
    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        """Pooled rows `[batch, sum of dims]` of the part's features; backward through them trains the parameters."""

    @abstractmethod
    def set_learning_rate(self, lr: float) -> None:
        """Train at another rate from now on."""


class TBEPart(Part):
    """Parameters in one fbgemm TBE: a row of a table is one row of each matrix. To write: `places`."""

    pooled_inside = True
    """Whether fbgemm pools the rows of each matrix, or hands them out one by one."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        super().__init__(group, compositions, spec)
        self._names = list(compositions[0].shapes)
        self._tbe = build_tbe(
            [composition.shapes[name] for name in self._names for composition in compositions],
            table_of_feature=[
                matrix * len(compositions) + t for matrix in range(len(self._names)) for t in group.table_of_feature
            ],
            pooling=self.pooling if self.pooled_inside else PoolingType.NONE,
            optimizer=spec.optimizer,
            device=spec.device,
        )

    @abstractmethod
    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        """The row of each matrix that each id needs, int64 `[n]`; `feature` is the place of its feature, `[n]`."""

    def join(self, rows: Sequence[Tensor], batch: KeyedJaggedTensor) -> Tensor:
        """Pooled rows of the tables from those of their matrices: `[batch, sum of dims]` each if pooled inside."""
        (only,) = rows
        return only

    def live(self) -> list[Mapping[str, Parameter]]:
        weights = self._tbe.split_embedding_weights()
        every = [Parameter(values, tbe_states(self._tbe, matrix)) for matrix, values in enumerate(weights)]
        count = len(self.compositions)
        return [dict(zip(self._names, every[t::count], strict=True)) for t in range(count)]

    def set_learning_rate(self, lr: float) -> None:
        self._tbe.set_learning_rate(lr)  # kept in fp32 there

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        ids, offsets, feature = batch.values(), batch.offsets(), feature_of_ids(batch)
        inside = (ids >= 0) & (ids < self._rows[feature])
        places = [place.where(inside, _OUTSIDE) for place in self.places(ids, feature)]
        behind = [offsets[1:] + matrix * ids.numel() for matrix in range(1, len(places))]
        found: Tensor = self._tbe(torch.cat(places), torch.cat([offsets, *behind]))
        return self.join(found.chunk(len(places), dim=1 if self.pooled_inside else 0), batch)


class WholePart(TBEPart):
    """Tables as they are."""

    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        return [ids]


class LeafParameters:
    """Parameter matrices that autograd hands dense gradients to, and the optimizer that follows each.

    Not an `nn.Module`, so hidden from `parameters()`: a dense optimizer must not train them as well.
    """

    def __init__(self, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        self._optimizer = spec.optimizer
        self.live = [
            {name: self._leaf(shape, spec) for name, shape in composition.shapes.items()}
            for composition in compositions
        ]

    def values(self, table: int) -> dict[str, Tensor]:
        """The matrices of a table, by name."""
        return {name: parameter.values for name, parameter in self.live[table].items()}

    def set_learning_rate(self, lr: float) -> None:
        """Train at another rate from now on."""
        self._optimizer = replace(self._optimizer, lr=lr)

    def _leaf(self, shape: tuple[int, int], spec: SystemSpec) -> Parameter:
        values = torch.zeros(shape, device=spec.device, requires_grad=True)
        state = spec.optimizer.zero_state(*shape, spec.device)
        values.register_post_accumulate_grad_hook(partial(self._update, state=state))
        return Parameter(values, state)

    @torch.no_grad()
    def _update(self, leaf: Tensor, state: Mapping[str, Tensor]) -> None:
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            update(leaf, gradient, state, self._optimizer)


def update(values: Tensor, gradient: Tensor, state: Mapping[str, Tensor], optimizer: SparseOptimizer) -> None:
    """One step, in place, of a matrix `[rows, width]` with a dense gradient; where that is zero nothing moves.

    The formulas are those of `SparseOptimizer`, which are fbgemm's.
    """
    match optimizer.kind:
        case OptimizerKind.SGD:
            values.sub_(gradient, alpha=optimizer.lr)
            return
        case OptimizerKind.ROWWISE_ADAGRAD:
            total = state["sum"].add_(gradient.square().mean(dim=1)).unsqueeze(1)
        case OptimizerKind.ADAGRAD:
            total = state["sum"].add_(gradient.square())
        case OptimizerKind.ADAM:
            raise ValueError("composed tables have no Adam")
    values.addcdiv_(gradient, total.sqrt().add_(optimizer.eps), value=-optimizer.lr)


def pooled_bags(rows: Tensor, places: Tensor, batch: KeyedJaggedTensor, pooling: PoolingType) -> Tensor:
    """Rows `[n, dim]`, of which every id of a batch has one, at its place; pooled bag by bag: `[batch, dims]`."""
    mode = "sum" if pooling is PoolingType.SUM else "mean"
    bags = embedding_bag(places, rows, batch.offsets(), mode=mode, include_last_offset=True)
    return bags.view(len(batch.keys()), batch.stride(), rows.shape[1]).transpose(0, 1).flatten(1)
