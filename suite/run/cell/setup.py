"""Setup of a cell: its system, workload and spec, and whether system and machine support them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from suite.records.groups import IN_RAM
from suite.records.measured import FrequencySource
from suite.records.record import Cell
from suite.run import locks, resources
from suite.run.cell.feed import Feed, open_workload
from suite.run.cell.training import Trainer, load_initial_rows, tables_of
from systems import registry
from systems.contract import (
    Budget,
    CacheRatio,
    DeviceBytes,
    EmbeddingSystem,
    HostBytes,
    OptimizerKind,
    SparseOptimizer,
    Support,
    SystemSpec,
    Tier,
    Verdict,
)
from workloads.batch import Workload
from workloads.schema import prefix_of


class LazyFrequencies(Mapping[str, Tensor]):
    """Frequencies that are counted at the first access: at full scale they take seconds and gigabytes.

    Attributes:
        source: Origin of the frequencies; None before the first access.
    """

    def __init__(self, workload: Workload, *, cell: Cell) -> None:
        self._workload = workload
        self._prefix = cell.frequency_prefix
        self._counted: Mapping[str, Tensor] | None = None
        self.source: FrequencySource | None = None

    def forget(self) -> None:
        """Free the frequencies; the next access counts again."""
        self._counted = None

    def __getitem__(self, table: str) -> Tensor:
        if self._counted is None:
            samples = prefix_of(self._workload.epoch_rows(), self._prefix)
            self.source = FrequencySource(prefix=self._prefix, samples=samples)
            self._counted = self._workload.frequencies(self._prefix)
        return self._counted[table]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._workload.tables)

    def __len__(self) -> int:
        return len(self._workload.tables)


@dataclass(frozen=True)
class CellSetup:
    """A cell with its system's class and spec, and its workload; `frequencies` are those of `spec`."""

    cell: Cell
    system_class: type[EmbeddingSystem]
    workload: Workload
    frequencies: LazyFrequencies
    spec: SystemSpec

    @classmethod
    def of(cls, cell: Cell) -> Self:
        """Open the cell's workload and find its system.

        Raises:
            ValueError: its system or workload is unknown.
            ImportError: the system needs a package that is not installed.
        """
        variant = registry.Variant.parse(cell.system)
        system_class = registry.load(variant, on_ranks=cell.ranks is not None)
        workload = open_workload(cell)
        frequencies = LazyFrequencies(workload, cell=cell)
        spec = SystemSpec(
            tables=tables_of(workload.tables, cell.embedding_dim),
            optimizer=SparseOptimizer(kind=OptimizerKind(cell.optimizer), lr=cell.lr, eps=cell.eps),
            device=torch.device(cell.device),
            budget=_budget(cell),
            batch_lookups=workload.batch_lookups,
            frequencies=frequencies,
            parameters=registry.resolved_parameters(variant, system_class),
        )
        return cls(cell, system_class, workload, frequencies, spec)

    def build(
        self,
        feed: Feed,
        *,
        total_steps: int,
        beat: Callable[[], None],
        kind: type[Trainer] = Trainer,
    ) -> tuple[EmbeddingSystem, Trainer]:
        """The system at full size with its initial rows, and a trainer of a DLRM around it; see `Trainer`."""
        cell = self.cell
        system = load_initial_rows(self.system_class(self.spec), seed=cell.round_seed, on_chunk=beat)
        trainer = kind(
            system,
            self.workload,
            bottom_mlp=cell.bottom_mlp,
            top_mlp=cell.top_mlp,
            seed=cell.round_seed,
            feed=feed,
            total_steps=total_steps,
        )
        return system, trainer

    @property
    def on_drive(self) -> bool:
        """Whether its rows are on a drive, at a host budget."""
        return self.cell.host_budget_bytes is not None and Tier.DISK in self.system_class.required_bytes(self.spec)

    def support(self) -> Support:
        """The system's support of the setting; if it supports it, whether this machine has the required bytes."""
        support = self.system_class.support(self.spec)
        if support.verdict is not Verdict.YES:
            return support
        if self.cell.host_budget_bytes is not None and not (self.on_drive or self.cell.system == IN_RAM):
            reason = "keeps its rows in memory, so no host budget would hold it: take --systems disk, or no --tier disk"
            return Support(Verdict.UNSUPPORTED, reason)
        needed = dict(self.system_class.required_bytes(self.spec))
        folder, free = locks.free_bytes()
        room = {Tier.HOST: resources.available_host_bytes(), Tier.DISK: free}
        if self.spec.device.type == "cpu":
            needed = {Tier.DISK: needed.pop(Tier.DISK, 0), Tier.HOST: sum(needed.values())}
        else:
            room[Tier.DEVICE] = torch.cuda.mem_get_info(self.spec.device)[1]
        for tier, available in room.items():
            wanted = needed.get(tier, 0) // ((self.cell.ranks or 1) if tier is Tier.DEVICE else 1)
            if wanted > available:
                where, remedy = f"of {tier} memory", ""
                if tier is Tier.DISK:
                    where, remedy = f"at {folder}", "set TMPDIR to a directory on a drive with more room, or "
                reason = f"needs {wanted / 1e9:.1f} GB {where}, {available / 1e9:.1f} GB are free there: {remedy}"
                return Support(Verdict.INFEASIBLE, f"{reason}use a smaller --scale or --embedding-dim")
        return support


def _budget(cell: Cell) -> Budget:
    if cell.host_budget_bytes is not None:
        return HostBytes(total_bytes=cell.host_budget_bytes, device_bytes=cell.device_budget_bytes)
    if cell.device_budget_bytes is not None:
        return DeviceBytes(total_bytes=cell.device_budget_bytes)
    assert cell.cache_ratio is not None  # every planned cell has a ratio or a budget
    return CacheRatio(ratio=cell.cache_ratio)
