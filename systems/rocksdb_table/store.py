"""Records by number in RocksDB, through rocksdict: opened, filled, read and written within a budget of memory."""

import errno
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rocksdict import Cache, IngestExternalFileOptions, Options, Rdict, SstFileWriter, WriteBatch, WriteOptions

from systems.threads import Worker

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_READERS = 32
_READ_RECORDS = 256
_WRITTEN_RECORDS = 4096
_BULK_FILE_BYTES = 256 << 20
_MEMTABLE_PERCENT = 20
_MEMTABLE_PEAK_PERCENT = 220
"""Of one memtable: one fills, one is written to the drive, RocksDB stalls before a third; and their indexes."""

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
        self._cache = Cache(0)
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

    def read(self, numbers: Int64s, size: int, take: Callable[[slice, Bytes], None]) -> None:
        """Read records of `size` bytes by number, `[n]`, ascending; what was never written is zeros.

        `take` gets the records in parts, each with its place among the numbers, on several threads.
        """
        self.settle()

        def part(start: int) -> None:
            place = slice(start, min(start + _READ_RECORDS, len(numbers)))
            found: Any = self._rocksdb.get(self._keys(numbers[place]))
            if None in found:
                found = [bytes(size) if record is None else record for record in found]
            take(place, np.frombuffer(bytearray().join(found), np.uint8).reshape(-1, size))

        with _full_drive():
            reads = [self._readers.submit(partial(part, start)) for start in range(0, len(numbers), _READ_RECORDS)]
            for read in reads:
                read.wait()
            for read in reads:
                read.result()

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
