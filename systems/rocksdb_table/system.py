"""The system over the store: it reads a batch's distinct rows, trains them in memory, and writes them back."""

import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.contract import Counters, MemoryBreakdown, MemoryUse, Placement, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import build_shared_tbe, tbe_states
from systems.fbgemm.tbe_system import fbgemm_refusals
from systems.features import ConcatenatedRows
from systems.in_flight import InFlight
from systems.rocksdb_table.store import Bytes, Int64s, RocksDBStore
from systems.unique_counter import CountedSystem

_POOL_STEP = 4096
_LEAST_BYTES = 2 << 20
_STEP_BYTES = 40 << 20
"""Memory for a batch's values as Python bytes objects, for the threads that read them, and for compactions."""
_WELL_USED = 0.9
"""Share of memory that allocators use when it is allocated in small pieces."""
_DISK_SHARE = 1.5
"""Ratio of file bytes to bytes of rows and state: keys, block padding, and data that compaction holds twice."""


class RocksDBTable(CountedSystem):
    """Every row in RocksDB, a store on a drive with a cache of its own in RAM: what fbgemm's SSD tables use inside.

    Rows and their state are values; block cache and memtables are within the budget.

    A batch's distinct rows are read into a pool, an fbgemm TBE that looks them up and updates them.
    """

    keeps_rows_read = True
    gpu_alternative = "fbgemm_uvm"

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._numbering = ConcatenatedRows(self._groups.groups[0], spec.device)
        dim = spec.tables[0].embedding_dim
        widths = {"weight": dim, **spec.optimizer.state_shapes(dim)}
        self._record = np.dtype([(name, np.float32, () if n == 1 else (n,)) for name, n in widths.items()])
        self._optimizer = spec.optimizer
        self._numbers: Int64s = np.empty(0, np.int64)  # of the records in the pool
        self._grow(min(_POOL_STEP, spec.rows))
        self._in_flight, self._trained = InFlight(1), False
        files = tempfile.TemporaryDirectory(prefix="rocksdb_table_")
        weakref.finalize(self, files.cleanup)  # registered first, so it comes last
        self._store = RocksDBStore(Path(files.name), records=spec.rows, memory_bytes=self._store_bytes())
        weakref.finalize(self, self._store.close)

    def _grow(self, rows: int) -> None:
        tbe = build_shared_tbe(
            rows,
            self.spec.tables[0].embedding_dim,
            table_of_feature=self._groups.groups[0].table_of_feature,
            pooling=PoolingType.SUM,
            optimizer=self._optimizer,
            device=torch.device("cpu"),
            checked=False,
        )
        self._pool = (tbe,)  # a tuple hides it from `parameters()`
        self._fields = {"weight": tbe.split_embedding_weights()[0], **tbe_states(tbe, 0)}

    @property
    def _pool_bytes(self) -> int:
        return len(self._fields["weight"]) * self._record.itemsize

    def _store_bytes(self) -> int:
        """Bytes for RocksDB: the budget less the pool's and a step's bytes, times the share that allocators use."""
        left = self.spec.budget_bytes - _STEP_BYTES - self._pool_bytes
        return max(_LEAST_BYTES, int(_WELL_USED * left))

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DISK: int(_DISK_SHARE * (spec.row_bytes + spec.state_bytes))}

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        yield from fbgemm_refusals(spec)
        yield from super().refusals(spec)

    @property
    def placement(self) -> Placement:
        return Placement(label="RocksDB", offloads=True)

    @property
    def busy_between_steps(self) -> bool:
        return True  # RocksDB flushes and compacts on threads of its own

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        self.flush()
        (ordered,) = self._groups.split(features)
        numbers, slots = self._numbering.rows_of(ordered).unique(return_inverse=True)
        self._counter.observe(ordered)
        if len(numbers) > len(self._fields["weight"]):
            self._grow(-(-len(numbers) // _POOL_STEP) * _POOL_STEP)
        self._numbers = numbers.numpy()

        def take(place: slice, records: Bytes) -> None:
            for name, values in self._fields_of(records).items():
                self._fields[name][place] = values

        self._store.read(self._numbers, self._record.itemsize, take)
        pooled = self._pool[0](slots, ordered.offsets().long())
        if self._store.memory_bytes != self._store_bytes():
            self._store.resize(self._store_bytes())
        self._in_flight.looked_up([pooled])
        self._trained = pooled.requires_grad
        return self._groups.join([pooled])

    def flush(self) -> None:
        """Write back the rows of the last batch, if backward may have changed them.

        Raises:
            RuntimeError: the batch's backward is pending.
        """
        self._in_flight.expire()
        if self._trained:
            self._store.write(
                self._numbers, lambda place: self._records_of({n: v[place] for n, v in self._fields.items()})
            )
        self._trained = False

    def _records_of(self, values: Mapping[str, Tensor]) -> Bytes:
        """Rows as records, a record being a row's weights and state; missing states are zero."""
        records = np.zeros(len(values["weight"]), self._record)
        for name, tensor in values.items():
            records[name] = tensor.numpy()
        return records.view(np.uint8).reshape(len(records), -1)

    def _fields_of(self, records: Bytes) -> dict[str, Tensor]:
        """Views of records as weights and states, in the same memory."""
        rows = records.view(self._record)[:, 0]
        return {name: torch.from_numpy(rows[name]) for name in self._record.names or ()}

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self.flush()
        self._store.load(self._numbering.first[table] + start, self._records_of({"weight": rows.weights, **rows.state}))

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        self.flush()
        numbers, places = (ids + self._numbering.first[table]).unique(return_inverse=True)
        records = np.empty((len(numbers), self._record.itemsize), np.uint8)
        self._store.read(numbers.numpy(), self._record.itemsize, records.__setitem__)
        found = {name: values[places] for name, values in self._fields_of(records).items()}
        return Rows(found.pop("weight"), found)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer = replace(self._optimizer, lr=lr)  # of a pool that grows
        self._pool[0].set_learning_rate(lr)

    def counters(self) -> Counters:
        return self._counter.counters()

    def memory(self) -> MemoryBreakdown:
        return {
            (Tier.DISK, MemoryUse.ROWS): self.spec.row_bytes,
            (Tier.DISK, MemoryUse.STATE): self.spec.state_bytes,
            (Tier.HOST, MemoryUse.ROWS): self._store.memory_bytes,
            (Tier.HOST, MemoryUse.STAGING): self._pool_bytes,
        }
