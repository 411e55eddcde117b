"""Base classes of systems with rows in fbgemm TBEs; `TBESystem` builds one TBE per pooling and type of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.answers import MemoryBreakdown, Placement, Rows, Support, Tier, Verdict
from systems.fbgemm.tbe import (
    ROW_TYPES,
    TBE,
    build_tbe,
    flush_tbe,
    load_tbe_rows,
    read_tbe_rows,
    set_tbe_steps,
    tbe_anatomy,
    tbe_key,
    tbe_placement,
    tbe_steps,
)
from systems.features import FeatureGroups, Group
from systems.spec import OptimizerKind, SystemSpec, row_type_of
from systems.unique_counter import CountedSystem

Lookup: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""Ids, bag offsets and per-sample weights of one TBE."""


def fbgemm_support(spec: SystemSpec) -> Support:
    """Refusal of settings that fbgemm's build for the device does not support."""
    if spec.device.type == "cpu" and spec.optimizer.kind is OptimizerKind.ADAM:
        return Support(Verdict.UNSUPPORTED, "fbgemm has no Adam on a CPU: use sgd, rowwise_adagrad or adagrad")
    return Support()


class TBEHolder(CountedSystem):
    """A system with its rows in fbgemm TBEs. Subclasses build them, or let torchrec build them, and call `_hold`."""

    host_rows_are = Tier.HOST
    """The tier that fbgemm's HOST tensors are in."""
    same_on_host: ClassVar[str | None] = None
    """The registered system that runs the same kernels where fbgemm keeps and looks up the rows in host memory."""

    def _hold(self, tbe_of_table: Mapping[str, tuple[TBE, int]]) -> None:
        """Register the TBE of every table, and the table's index in it."""
        # Tuples hide the TBEs from `parameters()`: their update is fused, a dense optimizer must not see them.
        self._tbe_of_table = dict(tbe_of_table)
        self._tbes: tuple[TBE, ...] = tuple(dict.fromkeys(tbe for tbe, _ in tbe_of_table.values()))

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {cls.host_rows_are: spec.row_bytes + spec.state_bytes}

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        refusal = fbgemm_support(spec)
        return super().support(spec) if refusal.verdict is Verdict.YES else refusal

    @property
    def tbes(self) -> Sequence[TBE]:
        return self._tbes

    @property
    def placement(self) -> Placement:
        # not inherited: a subclass may do more around the same TBEs, and must declare `same_on_host` itself
        alike = vars(type(self)).get("same_on_host")
        live = tbe_placement(self._tbes, host_rows_are=self.host_rows_are)
        return replace(live, same_kernel_as=alike if self._plain_on_host() else None)

    def _plain_on_host(self) -> bool:
        """Whether the live TBEs are those of a system without a cache on a CPU: host memory, one per `tbe_key`.

        All other settings of a TBE follow from the spec alone. With prefetching torchrec builds more TBEs.
        """
        for tbe in self._tbes:
            on_host = tbe.use_cpu and {spec[2] for spec in tbe.embedding_specs} == {EmbeddingLocation.HOST}
            checked = tbe.bounds_check_mode_int == BoundsCheckMode.FATAL.value
            if not on_host or not checked or tbe.lxu_cache_weights.numel() or tbe.prefetch_pipeline:
                return False
        held: dict[TBE, list[str]] = {tbe: [] for tbe in self._tbes}
        for name, (tbe, _) in sorted(self._tbe_of_table.items(), key=lambda entry: entry[1][1]):
            held[tbe].append(name)
        kinds = FeatureGroups(self.spec.tables, key=tbe_key).groups
        return sorted(held.values()) == sorted([table.name for table in kind.tables] for kind in kinds)

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        tbe, index = self._tbe_of_table[table]
        load_tbe_rows(tbe, table=index, start=start, rows=rows)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        tbe, index = self._tbe_of_table[table]
        return read_tbe_rows(tbe, table=index, ids=ids)

    def set_learning_rate(self, lr: float) -> None:
        for tbe in self._tbes:
            tbe.set_learning_rate(lr)  # kept in fp32 there

    def optimizer_steps(self, table: str) -> int:
        return tbe_steps(self._tbe_of_table[table][0])

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        set_tbe_steps(self._tbe_of_table[table][0], steps)

    def flush(self) -> None:
        for tbe in self._tbes:
            flush_tbe(tbe)

    def memory(self) -> MemoryBreakdown:
        return tbe_anatomy(self._tbes, host_rows_are=self.host_rows_are)


class TBESystem(TBEHolder):
    """Rows in fbgemm TBEs at one location, which subclasses set."""

    location: ClassVar[EmbeddingLocation]
    """Location of the rows on a CUDA device."""
    row_types = ROW_TYPES

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = FeatureGroups(spec.tables, key=tbe_key, weighted=spec.weighted)
        tbes = [self._build(group) for group in self._groups.groups]
        self._hold(
            {
                table.name: (tbe, index)
                for tbe, group in zip(tbes, self._groups.groups, strict=True)
                for index, table in enumerate(group.tables)
            }
        )

    def cache_options(self, group: Group) -> dict[str, Any]:
        """Further TBE arguments on a CUDA device."""
        return {}

    def _build(self, group: Group) -> TBE:
        return build_tbe(
            [(table.num_embeddings, table.embedding_dim) for table in group.tables],
            table_of_feature=group.table_of_feature,
            pooling=group.tables[0].pooling,
            optimizer=self.spec.optimizer,
            device=self.spec.device,
            location=self.location,
            row_type=row_type_of(group.tables[0]),
            **self.cache_options(group),
        )

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        inputs = self._inputs(features)
        self._counter.observe(features)
        return self._look_up(inputs)

    def _inputs(self, features: KeyedJaggedTensor) -> list[Lookup]:
        """Ids, bag offsets and weights by TBE."""
        return [(part.values(), part.offsets(), part.weights_or_none()) for part in self._groups.split(features)]

    def _look_up(self, inputs: Sequence[Lookup]) -> KeyedTensor:
        return self._groups.join([tbe(*one) for tbe, one in zip(self._tbes, inputs, strict=True)])
