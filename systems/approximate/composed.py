"""Systems whose tables are composed of fewer parameters than elements, and what they are verified against."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.answers import Anatomy, Counters, Placement, Purpose, Rows, Support, Tier, Verdict, resident_on
from systems.approximate.composition import Composition, Whole, salt_of
from systems.approximate.parts import LeafParameters, Parameter, Part, WholePart
from systems.contract import EmbeddingSystem
from systems.counting import CountedSystem
from systems.features import FeatureGroups
from systems.spec import OptimizerKind, SystemSpec

_AT_A_TIME = 1 << 14
"""Rows that `read_rows` composes together: a tensor train gathers some thousand bytes for each."""


class ComposedTables(CountedSystem):
    """What a system of composed tables and its definition share: all but looking up and training."""

    def __init__(self, spec: SystemSpec, compositions: Mapping[str, Composition]) -> None:
        super().__init__(spec)
        self.compositions = dict(compositions)

    @abstractmethod
    def live(self, table: str) -> Mapping[str, Parameter]:
        """The parameters of a table as they are, by name."""

    @property
    def exact(self) -> bool:
        return False

    @property
    def placement(self) -> Placement:
        return resident_on(next(iter(self.live(self.spec.tables[0].name).values())).values.device)

    @torch.no_grad()
    def start(self, seed: int) -> bool:
        for name, composition in self.compositions.items():
            generator = torch.Generator().manual_seed((seed * 1_000_003 + salt_of(name)) % 2**63)
            first = composition.initial(generator)
            for parameter, live in self.live(name).items():
                live.values.copy_(first[parameter])
                for state in live.state.values():
                    state.zero_()
        return True

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        raise NotImplementedError(
            f"{type(self).__name__} composes rows from parameters that many of them share, so they cannot be loaded "
            "one by one: start it from a seed, or load its own state_dict"
        )

    @torch.no_grad()
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        composition = self.compositions[table]
        parameters = {name: live.values for name, live in self.live(table).items()}
        rows = torch.empty(ids.numel(), composition.dim)
        for first in range(0, ids.numel(), _AT_A_TIME):
            part = ids[first : first + _AT_A_TIME].to(self.spec.device)
            rows[first : first + _AT_A_TIME] = composition.compose(parameters, part)
        return Rows(rows)  # without state: that belongs to parameters, and goes where they go in a `state_dict`

    def memory(self) -> Anatomy:
        live = [parameter for name in self.tables for parameter in self.live(name).values()]
        return {
            (Tier.DEVICE, Purpose.ROWS): sum(parameter.values.nbytes for parameter in live),
            (Tier.DEVICE, Purpose.STATE): sum(s.nbytes for parameter in live for s in parameter.state.values()),
        }

    def counters(self) -> Counters:
        return self._counter.all_resident()

    def _tensors(self, table: str) -> dict[str, Tensor]:
        """The live tensors of a table: `PARAMETER`, and its state as `PARAMETER.STATE`."""
        found = {}
        for name, parameter in self.live(table).items():
            found[name] = parameter.values
            found.update({f"{name}.{state}": values for state, values in parameter.state.items()})
        return found

    def saved_shapes(self, table: str) -> dict[str, tuple[int, ...]]:
        return {name: tuple(live.shape) for name, live in self._tensors(table).items()}

    def save_table(self, table: str) -> dict[str, Tensor]:
        return {name: live.detach().cpu().clone() for name, live in self._tensors(table).items()}

    @torch.no_grad()
    def load_table(self, table: str, saved: dict[str, Tensor]) -> None:
        for name, live in self._tensors(table).items():
            live.copy_(saved[name])


class DefinitionSystem(ComposedTables):
    """What a composed system is verified against: slow, larger than the tables, and nothing but the definition."""

    about = (
        "Every row composed anew at every step, in plain PyTorch: the answer that a composed system is checked against."
    )

    def __init__(self, spec: SystemSpec, compositions: Mapping[str, Composition]) -> None:
        super().__init__(spec, compositions)
        self._groups = FeatureGroups(spec.tables, key=lambda table: None)
        self._leaves = LeafParameters(list(self.compositions.values()), spec)
        self._place = {name: place for place, name in enumerate(self.compositions)}

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: spec.row_bytes}

    def live(self, table: str) -> Mapping[str, Parameter]:
        return self._leaves.live[self._place[table]]

    def set_learning_rate(self, lr: float) -> None:
        self._leaves.set_learning_rate(lr)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        self._counter.observe(ordered)
        parts = ordered.to_dict()
        pooled = []
        for place, table in enumerate(self.spec.tables):
            every = torch.arange(table.num_embeddings, device=self.spec.device)
            rows = self.compositions[table.name].compose(self._leaves.values(place), every)
            mode = "sum" if table.pooling is PoolingType.SUM else "mean"
            for name in table.feature_names:
                ids, offsets = parts[name].values(), parts[name].offsets()
                pooled.append(embedding_bag(ids, rows, offsets, mode=mode, include_last_offset=True))
        return self._groups.join([torch.cat(pooled, dim=1)])


class ComposedSystem(ComposedTables):
    """A system of composed tables. To write: `composition`, and `part`, which looks tables so composed up."""

    whole_below: ClassVar[int] = 1_000
    """Tables of fewer rows stay whole, as do those whose parameters would be no fewer."""

    part: ClassVar[type[Part]]

    verified_rows = 2_000  # of which even a train of rank 32 has fewer elements than the table

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec, self.compositions_of(spec))
        made = self.compositions
        self._groups = FeatureGroups(
            spec.tables, key=lambda table: (type(made[table.name]), table.pooling, table.embedding_dim)
        )
        parts = []
        for group in self._groups.groups:
            of_tables = [made[table.name] for table in group.tables]
            kind = WholePart if isinstance(of_tables[0], Whole) else self.part
            parts.append(kind(group, of_tables, spec))
        self._parts = tuple(parts)

    @classmethod
    @abstractmethod
    def composition(cls, table: EmbeddingBagConfig, choice: Mapping[str, str]) -> Composition:
        """How a large table is made; `choice` has a value for every parameter of the variant."""

    @classmethod
    def compositions_of(cls, spec: SystemSpec) -> dict[str, Composition]:
        """How every table is made, by name."""
        choice = {name: spec.parameters.get(name, values[0]) for name, values in cls.variants.items()}
        made: dict[str, Composition] = {}
        for table in spec.tables:
            composition, whole = cls.composition(table, choice), Whole(table)
            smaller = table.num_embeddings >= cls.whole_below and composition.elements < whole.elements
            made[table.name] = composition if smaller else whole
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
    def support(cls, spec: SystemSpec) -> Support:
        if spec.optimizer.kind is OptimizerKind.ADAM:
            return Support(
                Verdict.UNSUPPORTED,
                f"{cls.__name__} has no Adam, whose moments are those of rows, not of parameters that rows share: use "
                "sgd, rowwise_adagrad or adagrad",
            )
        return super().support(spec)

    @classmethod
    def reference(cls, spec: SystemSpec) -> EmbeddingSystem:
        return DefinitionSystem(spec, cls.compositions_of(spec))

    def live(self, table: str) -> Mapping[str, Parameter]:
        part = next(part for part in self._parts if self.tables[table] in part.group.tables)
        place: int = part.group.tables.index(self.tables[table])
        return part.live()[place]

    def set_learning_rate(self, lr: float) -> None:
        for part in self._parts:
            part.set_learning_rate(lr)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        batches = self._groups.split(features)
        self._counter.observe(features)
        return self._groups.join([part.look_up(one) for part, one in zip(self._parts, batches, strict=True)])
