"""Counting a batch's distinct rows on systems that have no counters of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import Counters, EmbeddingSystem, OptimizerKind, Placement, SparseOptimizer, SystemSpec
from systems.features import FeatureGroups
from systems.spec import row_bytes_of


class UniqueCounter:
    """Distinct rows per batch by table, on the device the ids live on. Costs a sort per table: off unless enabled."""

    def __init__(self, tables: Sequence[EmbeddingBagConfig]) -> None:
        self._tables = tables
        self.enabled = False
        self.reset()

    def reset(self) -> None:
        self.steps = self.lookups = 0
        self._unique = dict.fromkeys((table.name for table in self._tables), 0)

    def observe(self, features: KeyedJaggedTensor) -> None:
        """Count one batch, if enabled."""
        if not self.enabled:
            return
        self.steps += 1
        parts = features.to_dict()
        for table in self._tables:
            self._count(table.name, [parts[name].values() for name in table.feature_names])

    def _count(self, table: str, ids: Sequence[Tensor]) -> None:
        self.lookups += sum(part.numel() for part in ids)
        self._unique[table] += torch.cat(list(ids)).unique().numel()

    @property
    def unique_ids(self) -> int:
        """Distinct rows, summed over batches and tables."""
        return sum(self._unique.values())

    def counters(self, **traffic: Any) -> Counters:  # noqa: ANN401 - of several types
        """Counters with the counts of this object and `traffic`."""
        if not self.steps:
            return Counters(steps=0)
        return Counters(steps=self.steps, lookups=self.lookups, unique_ids=self.unique_ids, **traffic)

    def uncached_uvm(self, optimizer: SparseOptimizer) -> Counters:
        """Traffic of rows that kernels read in place over the link, as fbgemm's do.

        Forward reads a row per occurrence (an upper bound: the device's L2 may absorb repeats), backward reads and
        writes it once per distinct row, with its optimizer state unless that is row-wise, which is on the device.
        """
        row_bytes = row_bytes_of(self._tables[0])
        rowwise = optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
        state_bytes = 0 if rowwise else optimizer.state_bytes(self._tables[0].embedding_dim)
        fetched = self.lookups + self.unique_ids
        return self.counters(
            unique_misses=self.unique_ids,
            lookup_misses=self.lookups,
            rows_fetched=fetched,
            rows_written_back=self.unique_ids,
            bytes_fetched=row_bytes * fetched + state_bytes * self.unique_ids,
            bytes_written_back=(row_bytes + state_bytes) * self.unique_ids,
            per_table={name: (unique, unique) for name, unique in self._unique.items()},
        )

    def looked_up_in_place(self, elsewhere: "UniqueCounter | None" = None) -> Counters:
        """Counters of a system that moves no rows: the lookups that `elsewhere` counted are pooled on the host.

        Bytes are then None, because they count rows: pooled vectors and their gradients cross the link instead.
        """
        bytes_moved = None if elsewhere else 0
        missed = elsewhere._unique if elsewhere else {}
        return self.counters(
            unique_misses=sum(missed.values()),
            lookup_misses=elsewhere.lookups if elsewhere else 0,
            rows_fetched=0,
            rows_written_back=0,
            per_table={name: (unique, missed.get(name, 0)) for name, unique in self._unique.items()},
            bytes_fetched=bytes_moved,
            bytes_written_back=bytes_moved,
        )


class CountedSystem(EmbeddingSystem):
    """A system with its features in one group, `_groups`, and a `UniqueCounter`, `_counter`.

    Unless a subclass says otherwise, all rows are on the device that computes. Subclasses implement the rest of
    `EmbeddingSystem`.
    """

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = FeatureGroups(spec.tables)
        self._counter = UniqueCounter(spec.tables)

    @property
    def placement(self) -> Placement:
        return Placement(label="device" if self.spec.device.type == "cuda" else "all in RAM", offloads=False)

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place()

    def reset_counters(self) -> None:
        self._counter.reset()

    def count_traffic(self, enabled: bool) -> None:
        self._counter.enabled = enabled
