"""The ids of any samples of a file: arrays mapped into memory, bags, and columns of Parquet."""

from __future__ import annotations

import io
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.simulate.traces.trace import Int64s
from workloads.errors import DataError

Integers = NDArray[np.integer]

_BLOCK_SAMPLES = 1 << 19
_BLOCK_IDS = 1 << 22
_ZIP_HEADER_BYTES = 30


class Source(ABC):
    """The ids of any samples of a file.

    Attributes:
        path: The file.
        samples: How many there are.
        names: Of the tables.
    """

    path: Path
    samples: int
    names: tuple[str, ...]

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        """Ids of samples, int64 `[n]`, table after table, and where each table's end, int64 `[tables]`."""

    @abstractmethod
    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        """The sample that the `at`-th id of a table belongs to, of those that `read` gives."""

    @abstractmethod
    def most_ids(self, samples: int) -> int:
        """Ids of so many samples in a row, at most."""

    @property
    def block(self) -> int:
        """Samples to read at a time where all are read."""
        return max(1, min(_BLOCK_SAMPLES, _BLOCK_IDS // max(1, len(self.names))))

    def blocks(self, samples: int) -> Iterator[tuple[int, int]]:
        """First and last plus one of the first samples, block by block."""
        for start in range(0, samples, self.block):
            yield start, min(start + self.block, samples)

    def place(self, table: int) -> str:
        """How a person finds a table in the file."""
        return f"column {table} ('{self.names[table]}')"


class OneHot(Source):
    """Integers `[samples, tables]`."""

    def __init__(self, path: Path, ids: Integers, names: Sequence[str] | None = None) -> None:
        if ids.ndim != 2 or not ids.shape[1]:
            raise DataError(f"{path}: ids of shape {list(ids.shape)}: give [samples, tables]")
        _check_integers(path, "ids", ids)
        self.path = path
        self.samples = ids.shape[0]
        self.names = _names(path, names, tables=ids.shape[1])
        self._ids = ids

    def read(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        block = np.ascontiguousarray(self._ids[start:stop].T, dtype=np.int64)
        return block.reshape(-1), np.arange(1, block.shape[0] + 1, dtype=np.int64) * block.shape[1]

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        return start + at

    def most_ids(self, samples: int) -> int:
        return samples * len(self.names)


class Bags(Source):
    """Integers `[n]`, sample after sample, and `offsets` `[samples * tables + 1]`."""

    def __init__(self, path: Path, ids: Integers, offsets: Integers, names: tuple[str, ...]) -> None:
        _check_integers(path, "ids", ids)
        _check_integers(path, "offsets", offsets)
        tables = len(names)
        if ids.ndim != 1 or offsets.ndim != 1 or (offsets.size - 1) % tables or offsets.size < 1:
            raise DataError(
                f"{path}: ids of shape {list(ids.shape)} with offsets of shape {list(offsets.shape)} and {tables} "
                f"tables: give ids [n] and offsets [samples * {tables} + 1]"
            )
        self.path = path
        self.samples = (offsets.size - 1) // tables
        self.names = names
        self._ids = ids
        self._offsets = offsets
        self._check_offsets()

    def read(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        tables = len(self.names)
        offsets = self._offsets_of(start, stop)
        lengths = np.diff(offsets)
        table_of_id = np.repeat(np.tile(np.arange(tables, dtype=np.int16), stop - start), lengths)
        by_table = np.argsort(table_of_id, kind="stable")
        values = self._ids[offsets[0] : offsets[-1]].astype(np.int64)[by_table]
        return values, lengths.reshape(-1, tables).sum(axis=0).cumsum()

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        ends = np.diff(self._offsets_of(start, stop)).reshape(-1, len(self.names))[:, table].cumsum()
        return start + int(np.searchsorted(ends, at, side="right"))

    def most_ids(self, samples: int) -> int:
        first = np.asarray(self._offsets[:: len(self.names)][::samples], np.int64)
        # batches begin at multiples of `samples`; what is left over at the end is none
        return int(np.diff(first).max())

    def _offsets_of(self, start: int, stop: int) -> Int64s:
        tables = len(self.names)
        return self._offsets[start * tables : stop * tables + 1].astype(np.int64)

    def _check_offsets(self) -> None:
        if self._offsets[0] != 0 or self._offsets[-1] != self._ids.size:
            raise DataError(
                f"{self.path}: offsets run from {self._offsets[0]} to {self._offsets[-1]}: "
                f"they must run from 0 to the number of ids, {self._ids.size}"
            )
        for start, stop in self.blocks(self.samples):
            falls = np.flatnonzero(np.diff(self._offsets_of(start, stop)) < 0)
            if falls.size:
                sample, table = divmod(int(falls[0]), len(self.names))
                raise DataError(
                    f"{self.path}: offsets fall within sample {start + sample}, {self.place(table)}: "
                    "a bag must not end before it begins"
                )


class Parquet(Source):
    """One integer column per table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._decoded: OrderedDict[int, pl.DataFrame] = OrderedDict()
        try:
            self._frame = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            self.samples = int(self._frame.select(pl.len()).collect().item())
        except (OSError, pl.exceptions.PolarsError) as error:
            raise _unreadable(path, error) from error
        wrong = [f"{name} ({kind})" for name, kind in schema.items() if not kind.is_integer()]
        if wrong:
            raise DataError(f"{path}: not integers: column {', '.join(wrong)}: ids are whole numbers, drop what is not")
        if not len(schema):
            raise DataError(f"{path} has no columns: give one of integers per table")
        self.names = tuple(schema.names())

    @property
    def block(self) -> int:
        return _BLOCK_SAMPLES

    def read(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        blocks = range(start // self.block, -(-stop // self.block))
        frame = pl.concat([self._part(block, start, stop) for block in blocks])
        values = np.concatenate([self._values(column, start) for column in frame.iter_columns()], dtype=np.int64)
        return values, np.arange(1, len(self.names) + 1, dtype=np.int64) * (stop - start)

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        return start + at

    def most_ids(self, samples: int) -> int:
        return samples * len(self.names)

    def place(self, table: int) -> str:
        return f"column '{self.names[table]}'"

    def _part(self, block: int, start: int, stop: int) -> pl.DataFrame:
        """What of a decoded block lies between two samples."""
        with self._lock:
            if block not in self._decoded:
                try:
                    self._decoded[block] = self._frame.slice(block * self.block, self.block).collect()
                except (OSError, pl.exceptions.PolarsError) as error:
                    raise _unreadable(self.path, error) from error
            self._decoded.move_to_end(block)
            while len(self._decoded) > 2:
                self._decoded.popitem(last=False)
            frame = self._decoded[block]
        begin = block * self.block
        first = max(start, begin)
        return frame.slice(first - begin, min(stop, begin + self.block) - first)

    def _values(self, column: pl.Series, start: int) -> Integers:
        if column.null_count():
            row = start + cast(int, column.is_null().arg_max())
            raise DataError(
                f"{self.path}, column '{column.name}', row {row}: the id is missing: give missing values an id"
            )
        return column.to_numpy()


def open_npz(path: Path) -> tuple[Source, list[int] | None]:
    """The source in a `.npz`, and the rows of every table if the file says.

    Raises:
        DataError: the file cannot be read, or its arrays are no trace.
    """
    arrays = _members(path)
    unknown = sorted(set(arrays) - {"ids", "offsets", "rows", "names"})
    if "ids" not in arrays or unknown:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: give ids, with offsets, rows and names as needed, and "
            "nothing else"
        )
    rows = _rows(path, arrays["rows"]) if "rows" in arrays else None
    names = [str(name) for name in arrays["names"].reshape(-1)] if "names" in arrays else None
    source: Source
    if "offsets" in arrays:
        tables = len(rows) if rows is not None else len(names or [])
        if not tables:
            raise DataError(f"{path}: ids with offsets: give rows or names too, they say how many tables there are")
        source = Bags(path, arrays["ids"], arrays["offsets"], _names(path, names, tables=tables))
    else:
        source = OneHot(path, arrays["ids"], names)
    if rows is not None and len(rows) != len(source.names):
        raise DataError(f"{path}: rows of {len(rows)} tables, ids of {len(source.names)}: give one per table")
    return source, rows


def _rows(path: Path, rows: Integers) -> list[int]:
    _check_integers(path, "rows", rows)
    sizes = [int(size) for size in rows.reshape(-1)]
    if any(size < 1 for size in sizes):
        raise DataError(f"{path}: rows has {min(sizes)}: every table has at least 1")
    return sizes


def _names(path: Path, names: Sequence[str] | None, *, tables: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"table_{table}" for table in range(tables))
    if len(names) != tables or len(set(names)) != tables:
        raise DataError(f"{path}: {len(names)} names, {len(set(names))} of them different, for {tables} tables")
    return tuple(names)


def _check_integers(path: Path, what: str, array: NDArray[np.generic]) -> None:
    if array.dtype.kind not in "iu":
        raise DataError(f"{path}: {what} are {array.dtype}: give integers")


def open_npy(path: Path) -> Integers:
    """The array in a `.npy`, mapped. Raises `DataError` if the file cannot be read."""
    try:
        return cast(Integers, np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error


def _members(path: Path) -> dict[str, Integers]:
    """The arrays of a `.npz` by name: mapped where they are not compressed, which `np.load` does not do."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            return {name: _member(path, archive, entry, file) for name, entry in entries.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error


def _member(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: io.BufferedReader) -> Integers:
    if entry.compress_type != zipfile.ZIP_STORED:
        with archive.open(entry) as packed:
            return cast(Integers, np.lib.format.read_array(packed, allow_pickle=False))
    # name and extra field have lengths of their own in front of the data
    file.seek(entry.header_offset)
    header = file.read(_ZIP_HEADER_BYTES)
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), io.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject or not np.prod(shape):
        file.seek(entry.header_offset)
        with archive.open(entry) as plain:
            return cast(Integers, np.lib.format.read_array(plain, allow_pickle=False))
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order="F" if fortran else "C")
    return cast(Integers, mapped)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"--trace: cannot read {path}: {error}")
