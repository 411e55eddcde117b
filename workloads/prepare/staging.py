"""Parsed rows on disk: columns apart, each block of a column as a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl

from workloads.errors import DataError
from workloads.prepare.ahead import ahead
from workloads.prepare.columns import Kind, RawFormat
from workloads.prepare.memory_bound import Memory, threads
from workloads.prepare.parquet import ParquetRows
from workloads.prepare.parsing import Advance, BadRows, TextRows, unheard
from workloads.prepare.raw import RawFile, is_parquet
from workloads.prepare.workspace import done, identity, key_of, step

LAYOUT = 1  # of a staging folder: a change makes finished ones worthless
INDEX = "index.json"
_WIDTHS = (1, 2, 4, 8)

Codes = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class IdBlock:
    """One block of an id column.

    Attributes:
        values: uint64 `[distinct]`, sorted; missing ids are not among them.
        counts: uint32 `[distinct]`, rows of the block that have the value.
        first: uint32 `[distinct]`, the first of these rows, from the beginning of the block.
        missing: Rows without an id.
        missing_first: The first of them; 0 where there is none.
    """

    values: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    first: npt.NDArray[np.uint32]
    missing: int
    missing_first: int

    @classmethod
    def of(cls, values: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_] | None) -> tuple[IdBlock, Codes]:
        """The dictionary of a column and the code of each row.

        Args:
            values: uint64 `[rows]`.
            missing: bool `[rows]`, or None where no id is missing.

        Returns:
            The block, and codes `[rows]`: positions in `values`, their number for a missing id.
        """
        present = None if missing is None else np.flatnonzero(~missing)
        codes, distinct = pd.factorize(values if present is None else values[present])
        counts = np.bincount(codes, minlength=len(distinct)).astype(np.uint32)
        # codes are in order of first appearance: a code is new where the running maximum rises
        first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)) if len(codes) else codes
        first = first if present is None else present[first]
        order = np.argsort(distinct)
        place = np.empty(len(distinct), np.int64)
        place[order] = np.arange(len(distinct))
        narrow = np.dtype(f"<u{_width(len(distinct))}")
        if missing is None or present is None:
            all_codes = place.astype(narrow)[codes]
            lost = lost_first = 0
        else:
            all_codes = np.full(len(values), len(distinct), narrow)
            all_codes[present] = place[codes]
            lost, lost_first = len(values) - len(present), int(np.argmax(missing))
        return cls(distinct[order], counts[order], first[order].astype(np.uint32), lost, lost_first), all_codes

    def entries(self, which: slice) -> IdBlock:
        """Some entries of the dictionary."""
        return replace(self, values=self.values[which], counts=self.counts[which], first=self.first[which])

    def leading(self, codes: Codes) -> IdBlock:
        """The dictionary of the leading rows alone.

        Args:
            codes: Codes of these rows.
        """
        counts = np.bincount(codes, minlength=len(self.values) + 1)
        kept = np.flatnonzero(counts[:-1])
        lost = int(counts[-1])
        return IdBlock(
            self.values[kept], counts[kept].astype(np.uint32), self.first[kept], lost, self.missing_first if lost else 0
        )


@dataclass(frozen=True)
class StageTask:
    """Parse one raw file.

    Attributes:
        raw: How it is written.
        path: The file.
        work: The work folder.
        memory: The bound on memory.
        allowed: Bad rows that may be left out of all files.
        before: Bad rows left out of files before this one.
    """

    raw: RawFormat
    path: Path
    work: Path
    memory: Memory
    allowed: int = 0
    before: int = 0


def stage(task: StageTask, advance: Advance = unheard) -> Path:
    """Parse a raw file into a folder of columns, unless an earlier run has finished it.

    Returns:
        The folder, for `StagedFile`.

    Raises:
        DataError: the file cannot be read, holds more bad rows than allowed or no good one, or changes meanwhile.
    """
    try:
        before = identity(task.path)
    except OSError as error:
        raise DataError(f"{task.path} cannot be read: {error.strerror}") from error
    folder = task.work / f"staged-{key_of(LAYOUT, task.raw.fingerprint, before)}"
    if (note := done(folder)) is not None:
        advance(note["bytes"], note["rows"])
        return folder
    bad = BadRows(task.path, allowed=task.allowed, before=task.before)
    with step(folder) as (made, note), _Columns(made, task.raw) as columns:
        if is_parquet(task.path):
            parquet = ParquetRows(task.raw, task.path, bad)
            for frame in ahead(parquet.frames(task.memory.text_block_bytes)):
                columns.append(frame)
                advance(0, columns.rows)
            note |= {"bytes": task.path.stat().st_size, "sha256": parquet.sha256()}
            advance(note["bytes"], columns.rows)
        else:
            file = RawFile(task.path)
            for frame in ahead(TextRows(task.raw, file, bad).frames(task.memory.text_block_bytes)):
                columns.append(frame)
                advance(file.bytes_read, columns.rows)
            note |= {"bytes": file.bytes_read, "sha256": file.sha256}
        if columns.rows == 0:
            raise DataError(f"{task.path} holds no good row: download it again, or leave it out")
        if task.path.is_file() and identity(task.path) != before:
            raise DataError(f"{task.path} changed while it was read: prepare it again once it is complete")
        note |= {"rows": columns.rows, "problems": bad.problems, "times": columns.times}
        columns.finish()
    return folder


class _Columns:
    """Writes the columns of one file block by block."""

    def __init__(self, folder: Path, raw: RawFormat) -> None:
        self._folder = folder
        self._raw = raw
        self._blocks: list[dict[str, object]] = []
        self._streams: dict[str, BinaryIO] = {}
        self._stack = ExitStack()
        self.rows = 0
        self.times: list[int] = []

    def __enter__(self) -> _Columns:
        names = ["labels", *(_dense(i) for i in range(len(self._raw.dense)))]
        names += [_ids(i) for i in range(len(self._raw.categorical))]
        self._pool = self._stack.enter_context(ThreadPoolExecutor(threads()))
        self._streams = {name: self._stack.enter_context((self._folder / name).open("wb")) for name in names}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, frame: pl.DataFrame) -> None:
        """Write one block."""
        if frame.height == 0:
            return
        if self._raw.time:
            times = frame[self._raw.time.name]
            self.times = [self.times[0] if self.times else int(times[0]), int(times[-1])]
        self._streams["labels"].write(frame[self._raw.label.name].to_numpy().data)
        dense = [self._append_dense(i, frame[column.name]) for i, column in enumerate(self._raw.dense)]
        integers = [frame[column.name] for column in self._raw.dense if column.kind is Kind.DENSE_INTEGER]
        series = [frame[column.name] for column in self._raw.categorical]
        ids = [self._append_ids(i, *made) for i, made in enumerate(self._pool.map(_factorized, series))]
        minimum = min((int(values.to_numpy().min()) for values in integers), default=0)
        self._blocks.append({"rows": frame.height, "dense": dense, "minimum": minimum, "ids": ids})
        self.rows += frame.height

    def finish(self) -> None:
        """Write the index; nothing may be appended after it."""
        for stream in self._streams.values():
            stream.flush()
        (self._folder / INDEX).write_text(json.dumps(self._blocks, default=int))

    def _append_dense(self, position: int, values: pl.Series) -> tuple[int, str]:
        stream = self._streams[_dense(position)]
        array = values.to_numpy()
        if array.dtype != np.float32:
            array = array.astype(_narrowest(int(array.min()), int(array.max())))
        offset = stream.tell()
        stream.write(np.ascontiguousarray(array).data)
        return offset, array.dtype.str

    def _append_ids(self, position: int, block: IdBlock, codes: Codes) -> tuple[int, int, int, int, int]:
        stream = self._streams[_ids(position)]
        offset = stream.tell()
        for array in (block.values, block.counts, block.first, codes):
            stream.write(np.ascontiguousarray(array).data)
        return offset, len(block.values), codes.itemsize, block.missing, block.missing_first


class StagedFile:
    """Reads what `stage` wrote.

    Attributes:
        folder: The staging folder.
        note: Size, sum, rows and bad rows of the raw file.
        block_rows: Rows of each block.
        minima: Smallest dense integer of each block.
    """

    def __init__(self, folder: Path) -> None:
        note = done(folder)
        if note is None:
            raise FileNotFoundError(folder / INDEX)
        self.folder = folder
        self.note = note
        blocks = json.loads((folder / INDEX).read_bytes())
        self.block_rows: list[int] = [block["rows"] for block in blocks]
        self.minima: list[int] = [block["minimum"] for block in blocks]
        self._dense = [block["dense"] for block in blocks]
        self._ids = [block["ids"] for block in blocks]
        self._starts = np.concatenate(([0], np.cumsum(self.block_rows)))

    @property
    def rows(self) -> int:
        """Good rows of the file."""
        return int(self._starts[-1])

    def start(self, block: int) -> int:
        """Row of the file at which a block starts."""
        return int(self._starts[block])

    def labels(self, block: int) -> npt.NDArray[np.uint8]:
        """uint8 `[rows]`, 0 or 1."""
        return np.fromfile(self.folder / "labels", np.uint8, self.block_rows[block], offset=self.start(block))

    def integers(self, column: int, block: int) -> npt.NDArray[np.signedinteger]:
        """A dense column of integers, `[rows]` of any width."""
        offset, dtype = self._dense[block][column]
        path = self.folder / _dense(column)
        array: npt.NDArray[np.signedinteger] = np.fromfile(path, dtype, self.block_rows[block], offset=offset)
        return array

    def floats(self, column: int, block: int) -> npt.NDArray[np.float32]:
        """A dense column of floats, float32 `[rows]`."""
        offset, _ = self._dense[block][column]
        return np.fromfile(self.folder / _dense(column), np.float32, self.block_rows[block], offset=offset)

    def ids(self, column: int, block: int, entries: slice = slice(None)) -> IdBlock:
        """The dictionary of one block, or some of its entries."""
        path = self.folder / _ids(column)
        offset, distinct, _, missing, missing_first = self._ids[block][column]
        start, stop, _ = entries.indices(distinct)
        length = max(0, stop - start)
        values = np.fromfile(path, np.uint64, length, offset=offset + 8 * start)
        counts = np.fromfile(path, np.uint32, length, offset=offset + 8 * distinct + 4 * start)
        first = np.fromfile(path, np.uint32, length, offset=offset + 12 * distinct + 4 * start)
        return IdBlock(values, counts, first, missing, missing_first)

    def distinct(self, column: int, block: int) -> int:
        """Distinct ids of one block, the missing one apart."""
        return int(self._ids[block][column][1])

    def missing(self, column: int, block: int) -> tuple[int, int]:
        """Rows of one block without an id, and the first of them."""
        missing, first = self._ids[block][column][3:]
        return missing, first

    def values(self, column: int, block: int) -> npt.NDArray[np.uint64]:
        """The sorted values of one block alone."""
        offset, distinct, *_ = self._ids[block][column]
        return np.fromfile(self.folder / _ids(column), np.uint64, distinct, offset=offset)

    def codes(self, column: int, block: int) -> Codes:
        """Codes `[rows]` into the dictionary of one block; its length stands for a missing id."""
        offset, distinct, width, *_ = self._ids[block][column]
        array: Codes = np.fromfile(
            self.folder / _ids(column), np.dtype(f"<u{width}"), self.block_rows[block], offset=offset + 16 * distinct
        )
        return array

    def blocks_before(self, row: int) -> Iterator[tuple[int, int]]:
        """Blocks that hold rows before one, with the number of these rows."""
        for block, rows in enumerate(self.block_rows):
            inside = min(rows, row - self.start(block))
            if inside <= 0:
                return
            yield block, inside

    def minimum(self, rows: int, integer_columns: Sequence[int]) -> int | None:
        """Smallest dense integer of the leading rows, None where there is no such column or row."""
        found = []
        for block, inside in self.blocks_before(rows) if integer_columns else ():
            if inside == self.block_rows[block]:
                found.append(self.minima[block])
            else:
                found += [int(self.integers(column, block)[:inside].min()) for column in integer_columns]
        return min(found, default=None)


def _factorized(series: pl.Series) -> tuple[IdBlock, Codes]:
    missing = series.is_null().to_numpy() if series.null_count() else None
    return IdBlock.of(series.fill_null(0).to_numpy(), missing)


def _dense(position: int) -> str:
    return f"dense_{position:03}"


def _ids(position: int) -> str:
    return f"ids_{position:03}"


def _width(largest: int) -> int:
    """Bytes of the narrowest unsigned integer that holds a code."""
    return next(width for width in _WIDTHS if largest < 1 << 8 * width)


def _narrowest(low: int, high: int) -> np.dtype[np.signedinteger]:
    return next(np.dtype(f"<i{w}") for w in _WIDTHS if -(1 << 8 * w - 1) <= low and high < 1 << 8 * w - 1)
