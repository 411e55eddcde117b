"""What a cell asks of its system, and whether the system and this machine can give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from suite.records.record import Cell
from suite.run import memory_probes, scratch
from suite.run.cell.frequencies import LazyFrequencies
from suite.run.cell.stream import open_workload
from suite.run.cell.training import tables_of
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


@dataclass(frozen=True)
class Asked:
    """A cell with all that its system is built from.

    Attributes:
        frequencies: Those of `spec`, which know where they came from.
    """

    cell: Cell
    system_class: type[EmbeddingSystem]
    workload: Workload
    frequencies: LazyFrequencies
    spec: SystemSpec

    @classmethod
    def of(cls, cell: Cell, *, beat: Callable[[], None] = lambda: None) -> Self:
        """Open the cell's workload and find its system.

        Args:
            cell: What runs.
            beat: Called often while frequencies are counted, to show that something happens.

        Raises:
            ValueError: the cell has neither a cache ratio nor a device budget, or its system or workload is unknown.
            ImportError: the system needs a package that is not there.
        """
        variant = registry.Variant.parse(cell.system)
        system_class = registry.load(variant, on_ranks=cell.ranks is not None)
        workload = open_workload(cell)
        frequencies = LazyFrequencies(workload, cell=cell, beat=beat)
        spec = SystemSpec(
            tables=tables_of(workload, cell.embedding_dim),
            optimizer=SparseOptimizer(kind=OptimizerKind(cell.optimizer), lr=cell.lr, eps=cell.eps),
            device=torch.device(cell.device),
            budget=_budget(cell),
            batch_lookups=workload.batch_lookups,
            frequencies=frequencies,
            parameters=registry.resolved_parameters(variant, system_class),
        )
        return cls(cell, system_class, workload, frequencies, spec)

    @property
    def on_drive(self) -> bool:
        """Whether its rows are on a drive, at a host budget."""
        return self.cell.host_budget_bytes is not None and Tier.DISK in self.system_class.required_bytes(self.spec)

    def support(self) -> Support:
        """What the system says, then whether this machine holds what the system needs at least."""
        support = self.system_class.support(self.spec)
        if support.verdict is not Verdict.YES:
            return support
        needed = dict(self.system_class.required_bytes(self.spec))
        on_disk = needed.pop(Tier.DISK, 0)
        if self.spec.device.type == "cpu":
            needed = {Tier.HOST: sum(needed.values())}
        room = {Tier.HOST: memory_probes.available_host_bytes()}
        if self.spec.device.type == "cuda":
            room[Tier.DEVICE] = memory_probes.total_device_bytes(self.spec.device)
        for tier, available in room.items():
            wanted = needed.get(tier, 0) // (self.cell.nodes if tier is Tier.HOST else self.cell.ranks or 1)
            if wanted > available:
                return Support(
                    Verdict.INFEASIBLE,
                    f"needs at least {wanted / 1e9:.1f} GB of {tier} memory, this machine has {available / 1e9:.1f} GB "
                    "to give: use a smaller --scale or --embedding-dim",
                )
        folder, free = scratch.free_bytes()
        if on_disk > free:
            return Support(
                Verdict.INFEASIBLE,
                f"needs {on_disk / 1e9:.1f} GB at {folder}, {free / 1e9:.1f} GB are free there: set TMPDIR to a "
                "directory on a drive with more room, or use a smaller --scale or --embedding-dim",
            )
        return support


def _budget(cell: Cell) -> Budget:
    if cell.host_budget_bytes is not None:
        return HostBytes(total_bytes=cell.host_budget_bytes)
    if cell.device_budget_bytes is not None:
        return DeviceBytes(total_bytes=cell.device_budget_bytes)
    if cell.cache_ratio is not None:
        return CacheRatio(ratio=cell.cache_ratio)
    raise ValueError("a cell needs a cache ratio, a device budget or a host budget")
