"""The system over the store: it reads a batch's distinct rows, trains them in memory, and writes them back."""

import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.answers import MemoryBreakdown, MemoryUse, Placement, Rows, Support, Tier, Verdict
from systems.fbgemm.tbe import build_shared_tbe, tbe_states
from systems.fbgemm.tbe_system import fbgemm_support
from systems.features import FeatureGroups, Group
from systems.in_flight import InFlight
from systems.rocksdb_table.store import Bytes, Int64s, RocksDBStore
from systems.spec import SparseOptimizer, SystemSpec
from systems.unique_counter import CountedSystem

_POOL_STEP = 4096
_LEAST_BYTES = 2 << 20
_STEP_BYTES = 40 << 20
"""Memory for a batch's values as Python bytes objects, for the threads that read them, and for compactions."""
_WELL_USED = 0.9
"""Share of memory that allocators use when it is allocated in small pieces."""
_DISK_SHARE = 1.5
"""Ratio of file bytes to bytes of rows and state: keys, block padding, and data that compaction holds twice."""


class _Pool:
    """One batch's rows of tables of one width, in an fbgemm TBE that looks them up and updates them.

    `first` is the number of these tables' first record in the store; a record is a row's weights and state.
    """

    def __init__(self, group: Group, *, first: int, optimizer: SparseOptimizer) -> None:
        table = group.tables[0]
        sizes = [t.num_embeddings for t in group.tables]
        starts = np.cumsum([first, *sizes])
        self.group = group
        self.end = int(starts[-1])
        self.first_of = {t.name: int(start) for t, start in zip(group.tables, starts, strict=False)}
        self._rows_of_feature = torch.tensor([sizes[t] for t in group.table_of_feature])
        self._first_of_feature = torch.from_numpy(starts)[list(group.table_of_feature)]
        fields: list[tuple[str, type, tuple[int, ...]]] = [("weight", np.float32, (table.embedding_dim,))]
        for name, width in optimizer.state_shapes(table.embedding_dim).items():
            fields.append((name, np.float32, () if width == 1 else (width,)))
        self.record = np.dtype(fields)
        self.optimizer = optimizer
        self.numbers: Int64s = np.empty(0, np.int64)
        self._grow(min(_POOL_STEP, sum(sizes)))

    def _grow(self, rows: int) -> None:
        self._tbe = build_shared_tbe(
            rows,
            self.group.tables[0].embedding_dim,
            table_of_feature=self.group.table_of_feature,
            pooling=PoolingType.SUM,
            optimizer=self.optimizer,
            device=torch.device("cpu"),
            checked=False,
        )
        self._fields = {"weight": self._tbe.split_embedding_weights()[0], **tbe_states(self._tbe, 0)}
        self.rows = rows

    def set_learning_rate(self, lr: float) -> None:
        self.optimizer = replace(self.optimizer, lr=lr)
        self._tbe.set_learning_rate(lr)

    def numbered(self, part: KeyedJaggedTensor) -> Tensor:
        """The record number of every id of a batch.

        Raises:
            IndexError: an id is outside its table.
        """
        ids, counts = part.values().long(), torch.tensor(part.length_per_key())
        if ((ids < 0) | (ids >= self._rows_of_feature.repeat_interleave(counts))).any():
            raise IndexError(f"an id is outside its table: {', '.join(self.group.features)}")
        numbers: Tensor = ids + self._first_of_feature.repeat_interleave(counts)
        return numbers

    def fetch(self, store: RocksDBStore, numbers: Int64s) -> None:
        """Read the rows of these records, given in ascending order, into the pool."""
        if len(numbers) > self.rows:
            self._grow(-(-len(numbers) // _POOL_STEP) * _POOL_STEP)
        self.numbers = numbers

        def take(place: slice, records: Bytes) -> None:
            for name, values in self.fields_of(records).items():
                self._fields[name][place] = values

        store.read(numbers, self.record.itemsize, take)

    def write_back(self, store: RocksDBStore) -> None:
        store.write(self.numbers, lambda place: self.records_of({n: v[place] for n, v in self._fields.items()}))

    def records_of(self, values: Mapping[str, Tensor]) -> Bytes:
        """Rows as records; missing states are zero."""
        records = np.zeros(len(values["weight"]), self.record)
        for name, tensor in values.items():
            records[name] = tensor.numpy()
        return records.view(np.uint8).reshape(len(records), -1)

    def fields_of(self, records: Bytes) -> dict[str, Tensor]:
        """Views of records as weights and states, in the same memory."""
        rows = records.view(self.record)[:, 0]
        return {name: torch.from_numpy(rows[name]) for name in self.record.names or ()}

    def look_up(self, slots: Tensor, part: KeyedJaggedTensor) -> Tensor:
        """Look up and pool rows by their slot in this pool, one slot per id of `part`."""
        pooled: Tensor = self._tbe(slots, part.offsets().long())
        return pooled

    @property
    def nbytes(self) -> int:
        return self.rows * self.record.itemsize


class RocksDBTable(CountedSystem):
    """Rows and their state as values in RocksDB, its block cache and memtables within the budget."""

    about = (
        "Every row in RocksDB, a log-structured store on a drive, with its own cache in RAM: what fbgemm's SSD tables "
        "use inside."
    )
    keeps_rows_read = True
    gpu_alternative = "fbgemm_uvm"

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = FeatureGroups(spec.tables, key=lambda table: table.embedding_dim)
        pools, first = [], 0
        for group in self._groups.groups:
            pools.append(_Pool(group, first=first, optimizer=spec.optimizer))
            first = pools[-1].end
        self._pools = tuple(pools)
        self._pool_of = {table.name: pool for pool in pools for table in pool.group.tables}
        self._in_flight, self._trained = InFlight(1), False
        files = tempfile.TemporaryDirectory(prefix="rocksdb_table_")
        self._store = RocksDBStore(Path(files.name), records=first, memory_bytes=self._store_bytes())
        weakref.finalize(self, _remove, self._store, files)

    def _store_bytes(self) -> int:
        """Bytes for RocksDB: the budget less the pools' and a step's bytes, times the share that allocators use."""
        left = self.spec.budget_bytes - _STEP_BYTES - sum(pool.nbytes for pool in self._pools)
        return max(_LEAST_BYTES, int(_WELL_USED * left))

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DISK: int(_DISK_SHARE * (spec.row_bytes + spec.state_bytes))}

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        refusal = fbgemm_support(spec)
        return super().support(spec) if refusal.verdict is Verdict.YES else refusal

    @property
    def placement(self) -> Placement:
        return Placement(label="RocksDB", offloads=True)

    @property
    def busy_between_steps(self) -> bool:
        return True  # RocksDB flushes and compacts on threads of its own

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        self._finish()
        parts = self._groups.split(features)
        wanted = [
            pool.numbered(part).unique(return_inverse=True) for pool, part in zip(self._pools, parts, strict=True)
        ]
        self._counter.observe(features)
        pooled = []
        for pool, part, (numbers, slots) in zip(self._pools, parts, wanted, strict=True):
            pool.fetch(self._store, numbers.numpy())
            pooled.append(pool.look_up(slots, part))
        if self._store.memory_bytes != self._store_bytes():
            self._store.resize(self._store_bytes())
        joined = self._groups.join(pooled)
        self._in_flight.looked_up([joined.values()])
        self._trained = joined.values().requires_grad
        return joined

    def _finish(self) -> None:
        """Write back the rows of the last batch, if backward may have changed them.

        Raises:
            RuntimeError: the batch's backward is pending.
        """
        self._in_flight.expire()
        if self._trained:
            for pool in self._pools:
                pool.write_back(self._store)
        self._trained = False

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._finish()
        pool = self._pool_of[table]
        self._store.load(pool.first_of[table] + start, pool.records_of({"weight": rows.weights, **rows.state}))

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        self._finish()
        pool = self._pool_of[table]
        numbers, places = (ids + pool.first_of[table]).unique(return_inverse=True)
        records = np.empty((len(numbers), pool.record.itemsize), np.uint8)
        self._store.read(numbers.numpy(), pool.record.itemsize, records.__setitem__)
        found = {name: values[places] for name, values in pool.fields_of(records).items()}
        return Rows(found.pop("weight"), found)

    def set_learning_rate(self, lr: float) -> None:
        for pool in self._pools:
            pool.set_learning_rate(lr)

    def flush(self) -> None:
        self._finish()

    def memory(self) -> MemoryBreakdown:
        return {
            (Tier.DISK, MemoryUse.ROWS): self.spec.row_bytes,
            (Tier.DISK, MemoryUse.STATE): self.spec.state_bytes,
            (Tier.HOST, MemoryUse.ROWS): self._store.memory_bytes,
            (Tier.HOST, MemoryUse.STAGING): sum(pool.nbytes for pool in self._pools),
        }


def _remove(store: RocksDBStore, files: tempfile.TemporaryDirectory[str]) -> None:
    store.close()
    files.cleanup()
