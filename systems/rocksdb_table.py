"""Rows in RocksDB, through rocksdict: a store of records, and the system over it, whose rows are trained in memory."""

import errno
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rocksdict import Cache, IngestExternalFileOptions, Options, Rdict, SstFileWriter, WriteBatch, WriteOptions
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.contract import Counters, MemoryBreakdown, MemoryUse, Placement, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import build_shared_tbe, tbe_states
from systems.fbgemm.tbe_system import fbgemm_refusals
from systems.features import ConcatenatedRows
from systems.in_flight import InFlight
from systems.threads import Worker
from systems.unique_counter import CountedSystem

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_READERS = 32
_READ_RECORDS = 256
_WRITTEN_RECORDS = 4096
_BULK_FILE_BYTES = 256 << 20
_MEMTABLE_PERCENT = 20
_MEMTABLE_PEAK_PERCENT = 220
"""Peak bytes, % of one memtable: one fills, one is written to the drive, and both have indexes; a third stalls."""
_POOL_STEP = 4096
_LEAST_BYTES = 2 << 20
_STEP_BYTES = 40 << 20
"""Memory for a batch's values as Python bytes objects, for the threads that read them, and for compactions."""
_WELL_USED = 0.9
"""Share of memory that allocators use when it is allocated in small pieces."""
_DISK_SHARE = 1.5
"""Ratio of file bytes to bytes of rows and state: keys, block padding, and data that compaction holds twice."""

_OPTIONS = """\
[Version]
  rocksdb_version=9.0.0
  options_file_version=1.1
[DBOptions]
  create_if_missing=true
  use_direct_reads=true
  use_direct_io_for_flush_and_compaction=true
  allow_concurrent_memtable_write=false
  max_background_jobs=2
  max_open_files=-1
  compaction_readahead_size=262144
  stats_dump_period_sec=0
  stats_persist_period_sec=0
  keep_log_file_num=1
[CFOptions "default"]
  compression=kNoCompression
  write_buffer_size={memtable_bytes}
  max_write_buffer_number=2
  inplace_update_support=true
  optimize_filters_for_hits=true
[TableOptions/BlockBasedTable "default"]
  block_size=4096
  block_align=true
  format_version=6
  index_type=kTwoLevelIndexSearch
  partition_filters=true
  filter_policy=bloomfilter:10:false
  cache_index_and_filter_blocks=true
  cache_index_and_filter_blocks_with_high_priority=true
  pin_top_level_index_and_filter=true
"""


class RocksDBStore:
    """Records of fixed numbers, each of any length, in one RocksDB. A record that was never written is absent.

    Reads go past the page cache, so that what is in memory is what was asked for: two memtables and the block cache,
    which holds indexes and filters as well. There is no write-ahead log: what was written since the last flush is lost
    if the process dies. Reads come from many threads, because a drive wants many at a time and RocksDB, built without
    io_uring, reads one block after another. `memory_bytes` are those of memtables and block cache.

    Every method raises OSError with ENOSPC where the drive is full.
    """

    def __init__(self, directory: Path, *, records: int, memory_bytes: int) -> None:
        self._key = np.dtype(">u4" if records <= 1 << 32 else ">u8")
        self._memtable_bytes = max(64 << 10, memory_bytes * _MEMTABLE_PERCENT // 100)
        self._cache = Cache(memory_bytes)  # its shards, which readers lock, are as many as this size has
        self.resize(memory_bytes)
        options, families = _options(self._cache, memtable_bytes=self._memtable_bytes)
        with _full_drive():
            self._rocksdb = Rdict(str(directory / "rows"), options, families)
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[assignment, method-assign]  # a property, whatever its stub says
        self._rocksdb.set_write_options(unlogged)
        self._table_options = families["default"]
        self._readers = Worker("rocksdb-read", threads=_READERS)
        self._loading: SstFileWriter | None = None
        self._loaded, self._next = str(directory / "loaded.sst"), 0

    def load(self, start: int, records: Bytes) -> None:
        """Write records `[n, bytes]` from number `start` on, past the memtables, into table files of ascending ones."""
        for first in range(start, start + len(records), _WRITTEN_RECORDS):
            part = records[first - start : first - start + _WRITTEN_RECORDS]
            if self._loading is not None and (first < self._next or self._loading.file_size() >= _BULK_FILE_BYTES):
                self.settle()
            with _full_drive():
                if self._loading is None:
                    self._loading = SstFileWriter(self._table_options)
                    self._loading.open(self._loaded)
                self._next = first + len(part)
                keys = self._keys(np.arange(first, self._next))
                deque(map(self._loading.__setitem__, keys, _values(part)), maxlen=0)

    def resize(self, memory_bytes: int) -> None:
        """Hold so much in memory from now on; the block cache gives or takes the difference."""
        self._cache.set_capacity(max(1 << 20, memory_bytes - self._memtable_bytes * _MEMTABLE_PEAK_PERCENT // 100))
        self.memory_bytes = memory_bytes

    def settle(self) -> None:
        """Take in what was loaded."""
        loading, self._loading = self._loading, None
        if loading is not None:
            with _full_drive():
                loading.finish()
                moved = IngestExternalFileOptions()
                moved.set_move_files(True)
                self._rocksdb.ingest_external_file([self._loaded], moved)

    def read(self, numbers: Int64s, size: int) -> Bytes:
        """Records `[n, size]` by number, `[n]`, ascending; what was never written is zeros."""
        self.settle()
        records = np.empty((len(numbers), size), np.uint8)  # its own: reads of an interrupted call may still run

        def part(start: int) -> None:
            place = slice(start, start + _READ_RECORDS)
            found: Any = self._rocksdb.get(self._keys(numbers[place]))
            if None in found:
                found = [bytes(size) if record is None else record for record in found]
            records[place] = np.frombuffer(bytearray().join(found), np.uint8).reshape(-1, size)

        with _full_drive():
            reads = [self._readers.submit(partial(part, start)) for start in range(0, len(numbers), _READ_RECORDS)]
            for read in reads:
                read.wait()
            for read in reads:
                read.result()
        return records

    def write(self, numbers: Int64s, give: Callable[[slice], Bytes]) -> None:
        """Overwrite the records of these numbers, `[n]`, ascending, with what `give` has for a part of them."""
        self.settle()
        for start in range(0, len(numbers), _WRITTEN_RECORDS):
            place = slice(start, min(start + _WRITTEN_RECORDS, len(numbers)))
            batch = WriteBatch(raw_mode=True)
            deque(map(batch.put, self._keys(numbers[place]), _values(give(place))), maxlen=0)
            with _full_drive():
                self._rocksdb.write(batch)

    def close(self) -> None:
        """Stop all threads and leave the files as they are."""
        self._readers.close()
        self._rocksdb.cancel_all_background(wait=True)
        with suppress(Exception):  # it would write its memtables, which nobody wants, and says that it is shutting down
            self._rocksdb.close()

    def _keys(self, numbers: Int64s) -> list[Any]:
        return _values(numbers.astype(self._key)[:, None].view(np.uint8))


def _options(cache: Cache, **sizes: int) -> tuple[Options, dict[str, Options]]:
    """Options of the database and of its column families; what rocksdict has no function for comes from a file."""
    with tempfile.TemporaryDirectory(prefix="rocksdb_options_") as directory:
        (Path(directory) / "OPTIONS-000001").write_text(_OPTIONS.format(**sizes))
        options, families = Options.load_latest(directory, cache=cache)
    return options, families


def _values(rows: npt.NDArray[np.uint8]) -> list[Any]:
    """Rows `[n, bytes]` as bytes objects."""
    whole: list[Any] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return whole


@contextmanager
def _full_drive() -> Iterator[None]:
    """Say in Python's words that a drive is full; rocksdict says it in a sentence."""
    try:
        yield
    except Exception as error:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in str(error):
                raise OSError(number, f"RocksDB: {error}") from error
        raise


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
        for name, values in self._fields_of(self._store.read(self._numbers, self._record.itemsize)).items():
            self._fields[name][: len(numbers)] = values
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
        records = self._store.read(numbers.numpy(), self._record.itemsize)
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
