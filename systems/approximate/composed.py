"""Systems whose tables are composed of fewer parameters than elements."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.answers import Counters, MemoryBreakdown, MemoryUse, Placement, Rows, Support, Tier, Verdict, resident_on
from systems.approximate.composition import Composition, Whole, salt_of
from systems.approximate.parts import DefinitionPart, Part, TBEPart
from systems.contract import EmbeddingSystem
from systems.features import FeatureGroups
from systems.spec import OptimizerKind, SystemSpec
from systems.unique_counter import CountedSystem

_AT_A_TIME = 1 << 14
"""Rows that `read_rows` composes in one call: a tensor train gathers some thousand bytes per row."""


class ComposedSystem(CountedSystem):
    """A system of composed tables. Subclasses implement `composition`, and `part` where the parameters are not in TBEs.

    `by_definition` builds the reference for verification: plain PyTorch, slow, larger than the tables.
    """

    whole_below: ClassVar[int] = 1_000
    """Tables with fewer rows stay whole, as do tables whose composition would have no fewer parameters."""

    part: ClassVar[type[Part]] = TBEPart

    verified_rows = 2_000  # from here on even a tensor train of rank 32 has fewer elements than the table

    def __init__(self, spec: SystemSpec, *, by_definition: bool = False) -> None:
        super().__init__(spec)
        self.compositions = made = self.compositions_of(spec)
        self._groups = FeatureGroups(
            spec.tables, key=lambda table: (type(made[table.name]), table.pooling, table.embedding_dim)
        )
        parts = []
        for group in self._groups.groups:
            of_tables = [made[table.name] for table in group.tables]
            kind = TBEPart if isinstance(of_tables[0], Whole) else self.part
            parts.append((DefinitionPart if by_definition else kind)(group, of_tables, spec))
        self._parts = tuple(parts)
        self._part_of_table = {t.name: (part, i) for part in parts for i, t in enumerate(part.group.tables)}

    @classmethod
    @abstractmethod
    def composition(cls, table: EmbeddingBagConfig, choice: Mapping[str, str]) -> Composition:
        """Composition of a large table; `choice` has a value for every parameter of the variant."""

    @classmethod
    def compositions_of(cls, spec: SystemSpec) -> dict[str, Composition]:
        """Composition of every table, by table name."""
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
        return cls(spec, by_definition=True)

    @property
    def exact(self) -> bool:
        return False

    @property
    def placement(self) -> Placement:
        return resident_on(next(iter(self.live(self.spec.tables[0].name).values())).device)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        batches = self._groups.split(features)
        self._counter.observe(features)
        return self._groups.join([part.look_up(one) for part, one in zip(self._parts, batches, strict=True)])

    def set_learning_rate(self, lr: float) -> None:
        for part in self._parts:
            part.set_learning_rate(lr)

    def live(self, table: str) -> Mapping[str, Tensor]:
        """A table's own tensors, no copies: its `PARAMETER` matrices, and the state of each as `PARAMETER.STATE`."""
        part, place = self._part_of_table[table]
        return part.live(place)

    @torch.no_grad()
    def start(self, seed: int) -> bool:
        for table, composition in self.compositions.items():
            generator = torch.Generator().manual_seed((seed * 1_000_003 + salt_of(table)) % 2**63)
            first = composition.initial(generator)
            for name, live in self.live(table).items():
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
        composition, live = self.compositions[table], self.live(table)
        rows = torch.empty(ids.numel(), composition.dim)
        for first in range(0, ids.numel(), _AT_A_TIME):
            part = ids[first : first + _AT_A_TIME].to(self.spec.device)
            rows[first : first + _AT_A_TIME] = composition.compose(live, part)
        return Rows(rows)  # without state: it belongs to parameters, and is saved with them in a `state_dict`

    def memory(self) -> MemoryBreakdown:
        found = {(Tier.DEVICE, MemoryUse.ROWS): 0, (Tier.DEVICE, MemoryUse.STATE): 0}
        for table, composition in self.compositions.items():
            for name, live in self.live(table).items():
                found[Tier.DEVICE, MemoryUse.ROWS if name in composition.shapes else MemoryUse.STATE] += live.nbytes
        return found

    def counters(self) -> Counters:
        return self._counter.all_resident()

    def saved_shapes(self, table: str) -> dict[str, tuple[int, ...]]:
        return {name: tuple(live.shape) for name, live in self.live(table).items()}

    def save_table(self, table: str) -> dict[str, Tensor]:
        return {name: live.detach().cpu().clone() for name, live in self.live(table).items()}

    @torch.no_grad()
    def load_table(self, table: str, saved: dict[str, Tensor]) -> None:
        for name, live in self.live(table).items():
            live.copy_(saved[name])
