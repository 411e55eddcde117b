"""The first step: raw files to columns on disk, each block of an id column as a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl

from workloads import DataError
from workloads.prepare.cluster import Advance
from workloads.prepare.formats import RawFormat
from workloads.prepare.lines import RawFile, ahead, is_parquet
from workloads.prepare.merging import Counted, Run, Stored
from workloads.prepare.parquet import ParquetRows
from workloads.prepare.text import TextRows
from workloads.prepare.values import RowChecks
from workloads.prepare.workspace import Finished, Job, identity, key_of, step, threads

LAYOUT = 3  # of a staging folder: a change makes finished ones worthless
DATA, INDEX = "data", "index.json"

Codes = npt.NDArray[np.unsignedinteger]


class IdPlace(NamedTuple):
    """Where a block of an id column begins in the file, and what it has.

    Its dictionary comes first: values, counts and first rows in the block. Then come the codes.

    Attributes:
        distinct: Entries of the dictionary; as a code, a missing id.
        dtype: Of the codes.
        missing, missing_first: Rows without an id, and the first of them.
    """

    offset: int
    distinct: int
    dtype: str
    missing: int
    missing_first: int


class Block(NamedTuple):
    """A block of rows: the first and their number, its smallest dense integer, and where its columns lie.

    `labels` is an offset, `dense` has an offset and a dtype by column: integers of any width, or float32.
    """

    start: int
    rows: int
    minimum: int
    labels: int
    dense: list[tuple[int, str]]
    ids: list[IdPlace]


class StagedFile:
    """Reads what `stage` wrote, block by block."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / DATA
        self.blocks = [
            Block(start, rows, minimum, labels, dense, [IdPlace(*place) for place in ids])
            for start, rows, minimum, labels, dense, ids in json.loads((folder / INDEX).read_bytes())
        ]

    def labels(self, block: Block) -> npt.NDArray[np.uint8]:
        """uint8 `[rows]`, 0 or 1."""
        return Stored(self._data, np.uint8, block.rows, block.labels).read()

    def dense(self, column: int, block: Block) -> npt.NDArray[Any]:
        """A dense column, `[rows]`."""
        offset, dtype = block.dense[column]
        return Stored(self._data, dtype, block.rows, offset).read()

    def dictionary(self, column: int, block: Block) -> Run:
        """The distinct ids of a block, the missing one apart; their first rows count from the file's beginning."""
        offset, distinct, *_ = block.ids[column]
        values = Stored(self._data, np.uint64, distinct, offset)
        counts, first = (Stored(self._data, np.uint32, distinct, offset + size * distinct) for size in (8, 12))
        return Run(values, counts, first, block.start)

    def codes(self, column: int, block: Block) -> Codes:
        """Codes `[rows]` into the dictionary of a block; its length stands for a missing id."""
        place = block.ids[column]
        return Stored(self._data, place.dtype, block.rows, place.offset + 16 * place.distinct).read()

    def blocks_before(self, row: int) -> Iterator[tuple[Block, int]]:
        """Blocks that hold rows before one, with the number of these rows."""
        for block in self.blocks:
            if block.start < row:
                yield block, min(block.rows, row - block.start)


def stage(job: Job, path: Path, advance: Advance) -> Finished:
    """Parse a raw file into a folder of columns, for `StagedFile`, unless an earlier run has finished it.

    Raises:
        DataError: the file cannot be read, holds more bad rows than allowed or no good one, or changes meanwhile.
    """
    try:
        before = identity(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error

    def fill(made: Path) -> dict[str, Any]:
        checks = RowChecks(path, allowed=job.settings.skip_bad_rows, time=job.raw.time)
        file = ParquetRows(job.raw, path, checks) if is_parquet(path) else RawFile(path)
        rows = TextRows(job.raw, file, checks) if isinstance(file, RawFile) else file
        with (made / DATA).open("wb") as stream, ThreadPoolExecutor(threads()) as pool:
            columns = _Columns(job.raw, stream, pool)
            for frame in ahead(rows.frames(job.memory.text_block_bytes)):
                columns.append(frame)
                advance(file.bytes_read, columns.rows)
        if columns.rows == 0:
            raise DataError(f"{path} holds no good row: download it again, or leave it out")
        if path.is_file() and identity(path) != before:
            raise DataError(f"{path} changed while it was read: prepare it again once it is complete")
        (made / INDEX).write_text(json.dumps(columns.blocks))
        read = {"bytes": file.bytes_read, "sha256": file.sha256, "rows": columns.rows}
        return read | {"problems": checks.problems, "times": columns.times}

    staged = step(job.work / f"staged-{key_of(LAYOUT, job.raw.fingerprint, before)}", fill)
    advance(staged.note["bytes"], staged.note["rows"])
    return staged


class _Columns:
    """Writes the columns of one file block by block; `blocks` says where each lies, `times` are the first and last."""

    def __init__(self, raw: RawFormat, stream: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self._raw, self._stream, self._pool = raw, stream, pool
        self.blocks: list[Block] = []
        self.rows = 0
        self.times: list[int] = []

    def append(self, frame: pl.DataFrame) -> None:
        """Write one block."""
        if frame.height == 0:
            return
        if self._raw.time:
            times = frame[self._raw.time.name]
            self.times = [self.times[0] if self.times else int(times[0]), int(times[-1])]
        labels = self._write(frame[self._raw.label.name].to_numpy())
        arrays = [_narrowest(frame[column.name].to_numpy()) for column in self._raw.dense]
        dense = [(self._write(array), array.dtype.str) for array in arrays]
        integers = [array for array in arrays if array.dtype != np.float32]
        found = self._pool.map(_factorized, (frame[column.name] for column in self._raw.categorical))
        ids = [
            IdPlace(
                self._write(*ids, codes),
                len(ids.values),
                codes.dtype.str,
                len(missing),
                missing[0].item() if len(missing) else 0,
            )
            for ids, codes, missing in found
        ]
        minimum = min((int(array.min()) for array in integers), default=0)
        self.blocks.append(Block(self.rows, frame.height, minimum, labels, dense, ids))
        self.rows += frame.height

    def _write(self, *arrays: npt.NDArray[np.generic]) -> int:
        """Append arrays, one right after the other; returns the place."""
        self._stream.write(bytes(-self._stream.tell() % 8))  # so that what is mapped is aligned
        offset = self._stream.tell()
        for array in arrays:
            self._stream.write(np.ascontiguousarray(array).data)
        return offset


def _narrowest(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Integers in the narrowest type that holds them; floats as they are."""
    if values.dtype == np.float32:
        return values
    # n bits hold as many numbers below 0 as from 0 on
    return values.astype(np.min_scalar_type(min(int(values.min()), -1 - int(values.max()))))


def _factorized(series: pl.Series) -> tuple[Counted, Codes, npt.NDArray[np.intp]]:
    """The dictionary of a column, the code of each row in it, and the rows without an id.

    Codes are positions in the sorted values, their number for a missing id. Counts and first rows are uint32.
    """
    missing = np.flatnonzero(series.is_null().to_numpy()) if series.null_count() else np.empty(0, np.intp)
    present = np.flatnonzero(series.is_not_null().to_numpy()) if len(missing) else np.arange(len(series))
    codes, distinct = pd.factorize(series.drop_nulls().to_numpy())
    counts = np.bincount(codes, minlength=len(distinct)).astype(np.uint32)
    # codes are in order of first appearance: a code is new where the running maximum rises
    first = present[np.diff(np.maximum.accumulate(codes), prepend=-1) > 0] if len(codes) else codes
    order = np.argsort(distinct)
    place = np.empty(len(distinct), np.int64)
    place[order] = np.arange(len(distinct))
    all_codes = np.full(len(series), len(distinct), np.min_scalar_type(len(distinct)))
    all_codes[present] = place[codes]
    return Counted(distinct[order], counts[order], first[order].astype(np.uint32)), all_codes, missing
