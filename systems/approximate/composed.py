"""Tables composed of fewer parameters than elements: definitions, their groups in kernels, and the systems of them."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.contract import EmbeddingSystem, MemoryBreakdown, MemoryUse, OptimizerKind, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import build_tbe, tbe_states
from systems.features import FeatureGroups, Group, feature_of_ids
from systems.unique_counter import CountedSystem

_AT_A_TIME = 1 << 14
"""Rows that `read_rows` composes in one call: a tensor train gathers some thousand bytes per row."""
_OUTSIDE = 2**31 - 1
"""Row index outside every matrix: fbgemm refuses it, on a CPU at once, on CUDA in its kernel, without a sync."""


class Composition(ABC):
    """Definition of one table, which its system is verified against: a row combines one row of every matrix.

    `size` is the parameter of the variant: how many rows share one, or the rank.
    """

    def __init__(self, table: EmbeddingBagConfig, size: int = 1) -> None:
        self.rows: int = table.num_embeddings
        self.dim: int = table.embedding_dim
        self.size = size

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The parameter matrices, `(rows, width)` by name; row-wise optimizers keep one number for each row."""

    @abstractmethod
    def places(self, ids: Tensor) -> Sequence[Tensor]:
        """Row in each matrix for each id (int64 `[n]`), int64 `[n]` per matrix."""

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows of the table, `[n, dim]`, from rows of each matrix, `[n, width]`; the default has only one matrix."""
        (only,) = rows
        return only

    def compose(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        """Rows `ids` (int64 `[n]`) of the table, `[n, dim]`, differentiable with respect to the parameters."""
        places = zip(self.shapes, self.places(ids), strict=True)
        return self.combine([parameters[name].index_select(0, place) for name, place in places])

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters before training, fp32, by name: uniform, as facebookresearch/dlrm draws the rows of a table."""
        return {
            name: uniform(*shape, bound=self.rows**-0.5, generator=generator) for name, shape in self.shapes.items()
        }


class Whole(Composition):
    """An uncompressed table. Small tables stay whole: they take few bytes and would lose the most quality."""

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"weight": (self.rows, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [ids]


def uniform(rows: int, width: int, *, bound: float, generator: torch.Generator) -> Tensor:
    """Uniform in +-bound, fp32 `[rows, width]`; facebookresearch/dlrm's bound for a table is `1 / sqrt(its rows)`."""
    return torch.empty(rows, width).uniform_(-bound, bound, generator=generator)


def salt_of(name: str) -> int:
    """Salt of a table, below 2**32: the same in every process, and independent of other tables."""
    return zlib.crc32(name.encode())


class TBEPart:
    """Tables of one composition, their parameters in one fbgemm TBE.

    `live` has each table's own tensors, no copies: its `PARAMETER` matrices, and the state of each as
    `PARAMETER.STATE`.
    """

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        self.group = group
        self.compositions = compositions
        self._rows = torch.tensor([compositions[t].rows for t in group.table_of_feature], device=spec.device)
        names, count = list(compositions[0].shapes), len(compositions)
        self._tbe = build_tbe(
            [composition.shapes[name] for name in names for composition in compositions],
            table_of_feature=[matrix * count + t for matrix in range(len(names)) for t in group.table_of_feature],
            pooling=PoolingType.SUM if len(names) == 1 else PoolingType.NONE,
            optimizer=spec.optimizer,
            device=spec.device,
        )
        self.live: list[dict[str, Tensor]] = [{} for _ in compositions]
        for place, weights in enumerate(self._tbe.split_embedding_weights()):
            name, live = names[place // count], self.live[place % count]
            live[name] = weights
            live |= {f"{name}.{state}": values for state, values in tbe_states(self._tbe, place).items()}

    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        """Row in each matrix for each id, int64 `[n]` per matrix; `feature` is each id's feature index, `[n]`."""
        return self.compositions[0].places(ids)

    def set_learning_rate(self, lr: float) -> None:
        self._tbe.set_learning_rate(lr)  # kept in fp32 there

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        """Pooled rows `[batch, sum of dims]` of the part's features; backward through them trains the parameters."""
        ids, offsets, feature = batch.values(), batch.offsets(), feature_of_ids(batch)
        inside = (ids >= 0) & (ids < self._rows[feature])
        places = [place.where(inside, _OUTSIDE) for place in self.places(ids, feature)]
        behind = [offsets[1:] + matrix * ids.numel() for matrix in range(1, len(places))]
        found: Tensor = self._tbe(torch.cat(places), torch.cat([offsets, *behind]))
        if len(places) == 1:
            return found
        rows = self.compositions[0].combine(found.chunk(len(places)))
        return pooled_bags(rows, torch.arange(len(rows), device=rows.device), batch)


class DefinitionPart:
    """Such tables by definition: every row is composed at every step, in plain PyTorch, and trained by autograd."""

    def __init__(self, group: Group, compositions: Sequence[Composition], spec: SystemSpec) -> None:
        self.group = group
        self.compositions = compositions
        self._optimizer = spec.optimizer
        self.live: list[dict[str, Tensor]] = [{} for _ in compositions]
        for live, composition in zip(self.live, compositions, strict=True):
            for name, shape in composition.shapes.items():
                live[name] = torch.zeros(shape, device=spec.device, requires_grad=True)
                state = spec.optimizer.zero_state(*shape, spec.device)
                live[name].register_post_accumulate_grad_hook(partial(self._update, state=state))
                live |= {f"{name}.{entry}": values for entry, values in state.items()}

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer = replace(self._optimizer, lr=lr)

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        """As `TBEPart.look_up`."""
        bags, pooled = batch.to_dict(), []
        for table, composition in enumerate(self.compositions):
            rows = composition.compose(self.live[table], torch.arange(composition.rows, device=batch.values().device))
            for name in self.group.tables[table].feature_names:
                ids, offsets = bags[name].values(), bags[name].offsets()
                pooled.append(embedding_bag(ids, rows, offsets, mode="sum", include_last_offset=True))
        return torch.cat(pooled, dim=1)

    @torch.no_grad()
    def _update(self, leaf: Tensor, state: Mapping[str, Tensor]) -> None:
        """One step of a matrix `[rows, width]` with a dense gradient; elements with zero gradient do not change.

        Adam is refused by `ComposedSystem.refusals`: its elements would.
        """
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            leaf.copy_(leaf.double() - self._optimizer.step(gradient, state, 1))


def pooled_bags(rows: Tensor, places: Tensor, batch: KeyedJaggedTensor) -> Tensor:
    """Pool rows `[n, dim]` by bag: `[batch, sum of dims]`. `places`: index into `rows` of every id of the batch."""
    bags = embedding_bag(places, rows, batch.offsets(), mode="sum", include_last_offset=True)
    return bags.view(len(batch.keys()), batch.stride(), rows.shape[1]).transpose(0, 1).flatten(1)


class ComposedSystem(CountedSystem):
    """A system of composed tables. Subclasses set `composition`, and `part` where the parameters are not in TBEs.

    `by_definition` builds the reference for verification: plain PyTorch, slow, larger than the tables.
    """

    whole_below: ClassVar[int] = 1_000
    """Tables with fewer rows stay whole, as do tables whose composition would have no fewer parameters."""

    composition: ClassVar[type[Composition]]
    """Composition of the large tables; the system's only parameter is its `size`."""

    part: ClassVar[type[TBEPart | DefinitionPart]] = TBEPart

    verified_rows = 2_000  # from here on even a tensor train of rank 32 has fewer elements than the table

    def __init__(self, spec: SystemSpec, *, by_definition: bool = False) -> None:
        super().__init__(spec)
        self.compositions = made = self.compositions_of(spec)
        self._groups = FeatureGroups(spec.tables, key=lambda table: type(made[table.name]))
        parts = []
        for group in self._groups.groups:
            of_tables = [made[table.name] for table in group.tables]
            kind = TBEPart if isinstance(of_tables[0], Whole) else self.part
            parts.append((DefinitionPart if by_definition else kind)(group, of_tables, spec))
        self._parts = tuple(parts)
        self._live = {
            table.name: live for part in parts for table, live in zip(part.group.tables, part.live, strict=True)
        }

    @classmethod
    def compositions_of(cls, spec: SystemSpec) -> dict[str, Composition]:
        """Composition of every table, by table name."""
        ((parameter, sizes),) = cls.variants.items()
        size = int(spec.parameters.get(parameter, sizes[0]))
        made: dict[str, Composition] = {}
        for table in spec.tables:
            composition, elements = cls.composition(table, size), table.num_embeddings * table.embedding_dim
            smaller = sum(rows * width for rows, width in composition.shapes.values()) < elements
            made[table.name] = composition if smaller and table.num_embeddings >= cls.whole_below else Whole(table)
        return made

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {
            Tier.DEVICE: sum(
                rows * (4 * width + spec.optimizer.state_bytes(width))
                for composition in cls.compositions_of(spec).values()
                for rows, width in composition.shapes.values()
            )
        }

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.optimizer.kind is OptimizerKind.ADAM:
            yield (
                f"{cls.__name__} has no Adam, whose moments are those of rows, not of parameters that rows share: use "
                "sgd, rowwise_adagrad or adagrad"
            )
        yield from super().refusals(spec)

    @classmethod
    def reference(cls, spec: SystemSpec) -> EmbeddingSystem:
        return cls(spec, by_definition=True)

    @property
    def exact(self) -> bool:
        return False

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        batches = self._groups.split(features)
        self._counter.observe(features)
        return self._groups.join([part.look_up(one) for part, one in zip(self._parts, batches, strict=True)])

    def set_learning_rate(self, lr: float) -> None:
        for part in self._parts:
            part.set_learning_rate(lr)

    @torch.no_grad()
    def start(self, seed: int) -> bool:
        for table, composition in self.compositions.items():
            generator = torch.Generator().manual_seed((seed * 1_000_003 + salt_of(table)) % 2**63)
            first = composition.initial(generator)
            for name, live in self._live[table].items():
                live.copy_(first.get(name, torch.zeros(())))
        return True

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        raise NotImplementedError(
            f"{type(self).__name__} composes rows from parameters that many of them share, so they cannot be loaded "
            "one by one: start it from a seed, or load its own state_dict"
        )

    @torch.no_grad()
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        live = self._live[table]
        found = [self.compositions[table].compose(live, part.to(self.spec.device)) for part in ids.split(_AT_A_TIME)]
        return Rows(torch.cat(found).cpu())  # without state: it belongs to parameters, and is in a `state_dict`

    def memory(self) -> MemoryBreakdown:
        found = {(Tier.DEVICE, MemoryUse.ROWS): 0, (Tier.DEVICE, MemoryUse.STATE): 0}
        for table, composition in self.compositions.items():
            for name, live in self._live[table].items():
                found[Tier.DEVICE, MemoryUse.ROWS if name in composition.shapes else MemoryUse.STATE] += live.nbytes
        return found

    def saved_shapes(self, table: str) -> dict[str, tuple[int, ...]]:
        return {name: tuple(live.shape) for name, live in self._live[table].items()}

    def save_table(self, table: str) -> dict[str, Tensor]:
        return {name: live.detach().cpu().clone() for name, live in self._live[table].items()}

    @torch.no_grad()
    def load_table(self, table: str, saved: dict[str, Tensor]) -> None:
        for name, live in self._live[table].items():
            live.copy_(saved[name])
