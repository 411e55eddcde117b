"""Groups of composed tables, looked up and trained in fbgemm's kernels, or by autograd in plain PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torchrec import KeyedJaggedTensor, PoolingType

from systems.approximate.composition import Composition
from systems.fbgemm.tbe import build_tbe, tbe_states
from systems.features import Group, feature_of_ids
from systems.spec import OptimizerKind, SystemSpec

_OUTSIDE = 2**31 - 1
"""Row index outside every matrix: fbgemm refuses it, on a CPU at once, on CUDA in its kernel, without a sync."""


class Part(ABC):
    """Tables of one composition, one pooling and one width."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        self.group = group
        self.compositions = compositions
        self.mode = "sum" if group.tables[0].pooling is PoolingType.SUM else "mean"

    @abstractmethod
    def live(self, table: int) -> Mapping[str, Tensor]:
        """A table's own tensors, no copies: its `PARAMETER` matrices, and the state of each as `PARAMETER.STATE`."""

    @abstractmethod
    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        """Pooled rows `[batch, sum of dims]` of the part's features; backward through them trains the parameters."""

    @abstractmethod
    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate from the next step on."""


class TBEPart(Part):
    """Parameters in one fbgemm TBE: a row of a table is one row of each matrix."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        super().__init__(group, compositions, spec)
        self._rows = torch.tensor([compositions[t].rows for t in group.table_of_feature], device=spec.device)
        self._names = list(compositions[0].shapes)
        self._linear = compositions[0].linear
        self._tbe = build_tbe(
            [composition.shapes[name] for name in self._names for composition in compositions],
            table_of_feature=[
                matrix * len(compositions) + t for matrix in range(len(self._names)) for t in group.table_of_feature
            ],
            pooling=group.tables[0].pooling if self._linear else PoolingType.NONE,
            optimizer=spec.optimizer,
            device=spec.device,
        )

    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        """Row in each matrix for each id, int64 `[n]` per matrix; `feature` is each id's feature index, `[n]`."""
        return self.compositions[0].places(ids)

    def live(self, table: int) -> Mapping[str, Tensor]:
        weights, live = self._tbe.split_embedding_weights(), {}
        for matrix, name in enumerate(self._names):
            place = matrix * len(self.compositions) + table
            live[name] = weights[place]
            live |= {f"{name}.{state}": values for state, values in tbe_states(self._tbe, place).items()}
        return live

    def set_learning_rate(self, lr: float) -> None:
        self._tbe.set_learning_rate(lr)  # kept in fp32 there

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        ids, offsets, feature = batch.values(), batch.offsets(), feature_of_ids(batch)
        inside = (ids >= 0) & (ids < self._rows[feature])
        places = [place.where(inside, _OUTSIDE) for place in self.places(ids, feature)]
        behind = [offsets[1:] + matrix * ids.numel() for matrix in range(1, len(places))]
        found: Tensor = self._tbe(torch.cat(places), torch.cat([offsets, *behind]))
        rows = self.compositions[0].combine(found.chunk(len(places), dim=1 if self._linear else 0))
        if self._linear:
            return rows
        return pooled_bags(rows, torch.arange(len(rows), device=rows.device), batch, self.mode)


class LeafPart(Part):
    """Parameters with dense gradients from autograd, updated in a gradient hook. Subclasses implement `look_up`."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        super().__init__(group, compositions, spec)
        self._optimizer = spec.optimizer
        self._live: list[dict[str, Tensor]] = [{} for _ in compositions]
        for live, composition in zip(self._live, compositions, strict=True):
            for name, shape in composition.shapes.items():
                live[name] = torch.zeros(shape, device=spec.device, requires_grad=True)
                state = spec.optimizer.zero_state(*shape, spec.device)
                live[name].register_post_accumulate_grad_hook(partial(self._update, state=state))
                live |= {f"{name}.{entry}": values for entry, values in state.items()}

    def live(self, table: int) -> Mapping[str, Tensor]:
        return self._live[table]

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer = replace(self._optimizer, lr=lr)

    @torch.no_grad()
    def _update(self, leaf: Tensor, state: Mapping[str, Tensor]) -> None:
        """One step of a matrix `[rows, width]` with a dense gradient; elements with zero gradient do not change.

        The formulas are those of `SparseOptimizer`, i.e. fbgemm's.
        """
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            return
        match self._optimizer.kind:
            case OptimizerKind.SGD:
                leaf.sub_(gradient, alpha=self._optimizer.lr)
                return
            case OptimizerKind.ROWWISE_ADAGRAD:
                total = state["sum"].add_(gradient.square().mean(dim=1)).unsqueeze(1)
            case OptimizerKind.ADAGRAD:
                total = state["sum"].add_(gradient.square())
            case OptimizerKind.ADAM:
                raise ValueError("composed tables have no Adam")
        leaf.addcdiv_(gradient, total.sqrt().add_(self._optimizer.eps), value=-self._optimizer.lr)


class DefinitionPart(LeafPart):
    """Reference for the other parts: composes every row at every step, in plain PyTorch."""

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        bags, pooled = batch.to_dict(), []
        for table, composition in enumerate(self.compositions):
            rows = composition.compose(self._live[table], torch.arange(composition.rows, device=batch.values().device))
            for name in self.group.tables[table].feature_names:
                ids, offsets = bags[name].values(), bags[name].offsets()
                pooled.append(embedding_bag(ids, rows, offsets, mode=self.mode, include_last_offset=True))
        return torch.cat(pooled, dim=1)


def pooled_bags(rows: Tensor, places: Tensor, batch: KeyedJaggedTensor, mode: str) -> Tensor:
    """Pool rows `[n, dim]` by bag: `[batch, sum of dims]`. `places`: index into `rows` of every id of the batch."""
    bags = embedding_bag(places, rows, batch.offsets(), mode=mode, include_last_offset=True)
    return bags.view(len(batch.keys()), batch.stride(), rows.shape[1]).transpose(0, 1).flatten(1)
