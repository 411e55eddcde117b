"""Systems with rows in fbgemm TBEs: their bases, and those that keep all rows on the device, in RAM or on the host."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.contract import Counters, MemoryBreakdown, OptimizerKind, Placement, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import (
    TBE,
    build_tbe,
    flush_tbe,
    load_tbe_rows,
    read_tbe_rows,
    set_tbe_steps,
    tbe_anatomy,
    tbe_steps,
)
from systems.features import Group
from systems.unique_counter import CountedSystem

_LOCATIONS = {"DEVICE": "device", "MANAGED": "uvm", "MANAGED_CACHING": "uvm with device cache", "HOST": "host"}
Lookup: TypeAlias = tuple[Tensor, Tensor]
"""Ids and bag offsets."""


def fbgemm_refusals(spec: SystemSpec, *, on_cpu: bool = False) -> Iterator[str]:
    """Reasons for which fbgemm's build for the device does not support a setting; `on_cpu`: it looks rows up there."""
    if (on_cpu or spec.device.type == "cpu") and spec.optimizer.kind is OptimizerKind.ADAM:
        yield "fbgemm has no Adam on a CPU: use sgd, rowwise_adagrad or adagrad"


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
        self.tbes: tuple[TBE, ...] = tuple(dict.fromkeys(tbe for tbe, _ in tbe_of_table.values()))

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {cls.host_rows_are: spec.row_bytes + spec.state_bytes}

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        yield from fbgemm_refusals(spec, on_cpu=cls.ids_on_host)  # it looks up where the ids are
        yield from super().refusals(spec)

    @property
    def placement(self) -> Placement:
        if any(tbe.use_cpu for tbe in self.tbes):  # on a CPU torchrec silently builds HOST tables when told to use UVM
            # not inherited: a subclass may do more around the same TBEs, and must declare `same_on_host` itself;
            # to prefetch torchrec builds more
            alike = vars(type(self)).get("same_on_host")
            plain = all(tbe.use_cpu and not tbe.prefetch_pipeline for tbe in self.tbes)
            label = "all in RAM" if self.host_rows_are is Tier.DEVICE else "host-resident"
            return Placement(label=label, offloads=False, same_kernel_as=alike if plain else None)
        locations = sorted({spec[2].name for tbe in self.tbes for spec in tbe.embedding_specs})
        label, offloads = " + ".join(_LOCATIONS[name] for name in locations), locations != ["DEVICE"]
        if offloads:
            label += " (host-mapped)" if all(tbe.uvm_host_mapped for tbe in self.tbes) else " (managed)"
        return Placement(label=label, offloads=offloads)

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        tbe, index = self._tbe_of_table[table]
        load_tbe_rows(tbe, table=index, start=start, rows=rows)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        tbe, index = self._tbe_of_table[table]
        return read_tbe_rows(tbe, table=index, ids=ids)

    def set_learning_rate(self, lr: float) -> None:
        for tbe in self.tbes:
            tbe.set_learning_rate(lr)  # kept in fp32 there

    def optimizer_steps(self, table: str) -> int:
        return tbe_steps(self._tbe_of_table[table][0])

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        set_tbe_steps(self._tbe_of_table[table][0], steps)

    def flush(self) -> None:
        for tbe in self.tbes:
            flush_tbe(tbe)

    def memory(self) -> MemoryBreakdown:
        return tbe_anatomy(self.tbes, host_rows_are=self.host_rows_are)


class TBESystem(TBEHolder):
    """Rows in one fbgemm TBE at one location, which subclasses set."""

    location: ClassVar[EmbeddingLocation]
    """Location of the rows on a CUDA device."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        tbe = self._build(self._groups.groups[0])
        self._hold({table.name: (tbe, index) for index, table in enumerate(spec.tables)})

    def cache_options(self) -> dict[str, Any]:
        """Further TBE arguments on a CUDA device."""
        return {}

    def _build(self, group: Group) -> TBE:
        return build_tbe(
            [(table.num_embeddings, table.embedding_dim) for table in group.tables],
            table_of_feature=group.table_of_feature,
            pooling=PoolingType.SUM,
            optimizer=self.spec.optimizer,
            device=self.spec.device,
            location=self.location,
            **self.cache_options(),
        )

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return self._look_up(self._inputs(features))

    def _inputs(self, features: KeyedJaggedTensor) -> Lookup:
        (ordered,) = self._groups.split(features)
        self._counter.observe(ordered)
        return ordered.values(), ordered.offsets()

    def _look_up(self, inputs: Lookup) -> KeyedTensor:
        (tbe,) = self.tbes
        return self._groups.join([tbe(*inputs)])


class FullGPU(TBESystem):
    """Every row in GPU memory, in fbgemm's kernels: for tables that fit there, and the baseline of every ratio."""

    host_rows_are = Tier.DEVICE
    location = EmbeddingLocation.DEVICE


class FullRAM(FullGPU):
    """Every row in RAM, outside any budget: what rows on a drive are measured against."""

    gpu_alternative = "full_gpu"


class CPUEmbeddings(TBESystem):
    """All rows in host memory, pooled and updated by the CPU: no GPU memory for tables, at the speed of the CPU.

    Pooled vectors go to the device, their gradients come back.

    FAE (arXiv 2103.00686) and Hotline (arXiv 2204.05436) compare with it. No table byte is on the device, so every row
    that a batch asks for counts as missing there. Copies are from and to pageable memory: the host waits for them.
    """

    ids_on_host = True
    same_on_host = "full_gpu"
    location = EmbeddingLocation.HOST

    @property
    def placement(self) -> Placement:
        if self.spec.device.type == "cpu":
            return super().placement
        return Placement(label="host, looked up there", offloads=True)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return super().forward(features).to(self.spec.device)

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place(self._counter)
