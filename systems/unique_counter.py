"""Counting a batch's distinct rows on systems that have no counters of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.answers import Counters
from systems.contract import EmbeddingSystem
from systems.spec import OptimizerKind, SparseOptimizer, SystemSpec, row_bytes_of


class UniqueCounter:
    """Distinct rows per batch by table, on the device the ids live on. Costs a sort per table: off unless enabled."""

    def __init__(self, tables: Sequence[EmbeddingBagConfig]) -> None:
        self._tables = tables
        self.enabled = False
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self._lookups = dict.fromkeys((table.name for table in self._tables), 0)
        self._unique = dict(self._lookups)

    def observe(self, features: KeyedJaggedTensor) -> None:
        """Count one batch, if enabled."""
        if not self.enabled:
            return
        self.steps += 1
        parts = features.to_dict()
        for table in self._tables:
            ids = [parts[name].values() for name in table.feature_names]
            self._lookups[table.name] += sum(part.numel() for part in ids)
            self._unique[table.name] += torch.cat(ids).unique().numel()

    @property
    def lookups(self) -> int:
        """Ids looked up, summed over batches and tables."""
        return sum(self._lookups.values())

    @property
    def unique_ids(self) -> int:
        """Distinct rows, summed over batches and tables."""
        return sum(self._unique.values())

    def counters(self, **traffic: Any) -> Counters:  # noqa: ANN401 - of several types
        """Counters with the counts of this object and `traffic`."""
        if not self.steps:
            return Counters(steps=0)
        return Counters(steps=self.steps, lookups=self.lookups, unique_ids=self.unique_ids, **traffic)

    def all_resident(self) -> Counters:
        """Counters of a system whose rows are all on the device that computes."""
        return self.looked_up_in_place([], bytes_fetched=0, bytes_written_back=0)

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

    def looked_up_in_place(self, elsewhere: Sequence["UniqueCounter"], **bytes_moved: int) -> Counters:
        """Counters of a system that moves no rows: the lookups that `elsewhere` counted are pooled on the host.

        Bytes are None, because they count rows: pooled vectors and their gradients cross the link instead.
        """
        missed = {name: rows for counter in elsewhere for name, rows in counter._unique.items()}
        return self.counters(
            unique_misses=sum(missed.values()),
            lookup_misses=sum(counter.lookups for counter in elsewhere),
            rows_fetched=0,
            rows_written_back=0,
            per_table={name: (unique, missed.get(name, 0)) for name, unique in self._unique.items()},
            **bytes_moved,
        )


class CountedSystem(EmbeddingSystem):
    """A system with a `UniqueCounter`, `_counter`. Subclasses implement the rest of `EmbeddingSystem`."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._counter = UniqueCounter(spec.tables)

    def counters(self) -> Counters:
        return self._counter.counters()

    def reset_counters(self) -> None:
        self._counter.reset()

    def count_traffic(self, enabled: bool) -> None:
        self._counter.enabled = enabled
