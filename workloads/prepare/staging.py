"""The first two steps, file by file: raw rows to columns on disk, and counts of the ids of the training rows.

Each block of an id column is a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
from pydantic import TypeAdapter

from workloads import DataError
from workloads.prepare.cluster import Advance
from workloads.prepare.formats import Kind, RawFormat
from workloads.prepare.lines import RawFile, ahead, is_parquet
from workloads.prepare.merging import CountedIds, SortedIds, Stored, merged, write_run
from workloads.prepare.parquet import ParquetRows
from workloads.prepare.text import TextRows
from workloads.prepare.values import RowChecks
from workloads.prepare.workspace import Finished, Job, identity, key_of, step, threads

LAYOUT = 6  # of a staging folder: a change makes finished ones worthless
COUNTED_LAYOUT = 1  # of a counting folder
DATA, INDEX = "data", "index.json"


class StagedIds(NamedTuple):
    """A block of an id column.

    Attributes:
        dictionary: Its distinct ids; their first rows count from the file's beginning.
        codes: A position in the dictionary for each row; its length for a missing id.
        missing, missing_first: Rows without an id, and the first of them in the block.
    """

    dictionary: SortedIds
    codes: Stored
    missing: int
    missing_first: int


class StagedBlock(NamedTuple):
    """A block of rows.

    Attributes:
        start, rows: The first row in the file, and their number.
        minimum: The smallest dense integer.
        labels: uint8 `[rows]`, 0 or 1.
        dense: Columns `[rows]`: integers of any width, or float32.
        ids: By column.
    """

    start: int
    rows: int
    minimum: int
    labels: Stored
    dense: list[Stored]
    ids: list[StagedIds]


def staged_blocks(folder: Path) -> list[StagedBlock]:
    """The blocks of what `stage` wrote, in order."""
    return TypeAdapter(list[StagedBlock]).validate_json((folder / INDEX).read_bytes())


def stage(job: Job, path: Path, advance: Advance) -> Finished:
    """Parse a raw file into a folder of columns, for `staged_blocks`, unless an earlier run has finished it.

    Raises:
        DataError: the file cannot be read, holds more bad rows than allowed or no good one, or changes meanwhile.
    """
    try:
        before = identity(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    folder = job.work / f"staged-{key_of(LAYOUT, job.raw, before)}"

    def fill(made: Path) -> dict[str, Any]:
        checks = RowChecks(path, allowed=job.settings.skip_bad_rows, time=job.raw.time)
        file = ParquetRows(job.raw, path, checks) if is_parquet(path) else RawFile(path)
        rows = TextRows(job.raw, file, checks) if isinstance(file, RawFile) else file
        with (made / DATA).open("wb") as stream, ThreadPoolExecutor(threads()) as pool:
            columns = _Columns(job.raw, stream, folder / DATA, pool)
            for frame in ahead(rows.frames(job.memory.text_block_bytes)):
                columns.append(frame)
                advance(file.bytes_read)
        if columns.rows == 0:
            raise DataError(f"{path} holds no good row: download it again, or leave it out")
        if path.is_file() and identity(path) != before:
            raise DataError(f"{path} changed while it was read: prepare it again once it is complete")
        (made / INDEX).write_text(json.dumps(columns.blocks, default=str))
        read = {"bytes": file.bytes_read, "sha256": file.sha256, "rows": columns.rows}
        return read | {"problems": checks.problems, "times": columns.times}

    staged = step(folder, fill)
    advance(staged.note["bytes"])
    return staged


class _Columns:
    """Writes the columns of one file block by block; `blocks` says where each lies, `times` are the first and last."""

    def __init__(self, raw: RawFormat, stream: BinaryIO, path: Path, pool: ThreadPoolExecutor) -> None:
        self._raw, self._stream, self._path, self._pool = raw, stream, path, pool
        self.blocks: list[StagedBlock] = []
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
        integers = [array for array in arrays if array.dtype != np.float32]
        found = self._pool.map(_factorized, (frame[column.name] for column in self._raw.categorical))
        ids = []
        for dictionary, codes, missing in found:
            values, counts, first = (self._write(part) for part in dictionary)
            missing_first = missing[0].item() if len(missing) else 0
            distinct = SortedIds(values, counts, first, self.rows)
            ids.append(StagedIds(distinct, self._write(codes), len(missing), missing_first))
        minimum = min((int(array.min()) for array in integers), default=0)
        dense = [self._write(array) for array in arrays]
        self.blocks.append(StagedBlock(self.rows, frame.height, minimum, labels, dense, ids))
        self.rows += frame.height

    def _write(self, array: npt.NDArray[np.generic]) -> Stored:
        """Append an array."""
        self._stream.write(bytes(-self._stream.tell() % 8))  # so that what is mapped is aligned
        offset = self._stream.tell()
        self._stream.write(np.ascontiguousarray(array).data)
        return Stored(self._path, array.dtype.str, array.size, offset)


def _narrowest(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Integers in the narrowest type that holds them; floats as they are."""
    if values.dtype == np.float32:
        return values
    # n bits hold as many numbers below 0 as from 0 on
    return values.astype(np.min_scalar_type(min(int(values.min()), -1 - int(values.max()))))


def _factorized(series: pl.Series) -> tuple[CountedIds, npt.NDArray[np.unsignedinteger], npt.NDArray[np.intp]]:
    """The dictionary of a column, the code of each row in it, and the rows without an id.

    Codes are positions in the sorted values, their number for a missing id. Counts and first rows are uint32.
    """
    missing, present = (np.flatnonzero(mask.to_numpy()) for mask in (series.is_null(), series.is_not_null()))
    codes, distinct = pd.factorize(series.drop_nulls().to_numpy(), sort=True)
    counts = np.bincount(codes, minlength=len(distinct)).astype(np.uint32)
    first = np.empty(len(distinct), np.uint32)
    first[codes[::-1]] = present[::-1]  # the last one written stays
    all_codes = np.full(len(series), len(distinct), np.min_scalar_type(len(distinct)))
    all_codes[present] = codes
    return CountedIds(distinct, counts, first), all_codes, missing


def count(job: Job, part: tuple[Path, int], advance: Advance) -> Finished:
    """Count the training ids of each column of one file, unless an earlier run has.

    `part` is the folder of the staged file, and how many of its leading rows train. The folder that is made holds, for
    each column, its ids by value with their counts and first rows. The note has the rows without an id by column,
    `missing`, each with the first of them, and the smallest dense integer, `minimum`; None for none.
    """
    staged, rows = part
    integers = [i for i, column in enumerate(job.raw.dense) if column.kind is Kind.DENSE_INTEGER]
    columns = len(job.raw.categorical)
    at_once = min(threads(), columns)
    limit = job.memory.divided(at_once).merged_ids

    def fill(made: Path) -> dict[str, Any]:
        blocks = [(block, min(block.rows, rows - block.start)) for block in staged_blocks(staged) if block.start < rows]
        cut = made / "cut"
        cut.mkdir()

        def one(column: int) -> tuple[int, int]:
            runs, missing = _runs(blocks, column, cut)
            write_run(made, column, merged(runs, limit=limit))
            return missing

        missing = []
        with ThreadPoolExecutor(at_once) as pool:
            for position, found in enumerate(pool.map(one, range(columns)), start=1):
                missing.append(found)
                advance(rows * position // columns)
        shutil.rmtree(cut)
        minima = (
            block.minimum if inside == block.rows else min(int(block.dense[i].read()[:inside].min()) for i in integers)
            for block, inside in (blocks if integers else ())
        )
        return {"missing": missing, "minimum": min(minima, default=None)}

    counted = step(job.work / f"counted-{key_of(COUNTED_LAYOUT, staged.name, rows, integers)}", fill)
    advance(rows)
    return counted


def _runs(blocks: Sequence[tuple[StagedBlock, int]], column: int, cut: Path) -> tuple[list[SortedIds], tuple[int, int]]:
    """The dictionaries of a column in the leading rows of blocks; the rows without an id, and the first of them.

    That of a block of which a part trains is written anew, into the folder `cut`.
    """
    runs: list[SortedIds] = []
    missing = missing_first = 0
    for block, inside in blocks:
        run, codes, lost, first = block.ids[column]
        if inside < block.rows:
            distinct = run.values.length
            counts = np.bincount(codes.read()[:inside], minlength=distinct + 1)
            kept, lost = np.flatnonzero(counts[:-1]), int(counts[-1])
            ids = run.read(0, distinct)
            write_run(cut, column, [CountedIds(ids.values[kept], counts[kept].astype(np.int64), ids.first[kept])])
            run = SortedIds.whole(cut, column)
        runs.append(run)
        if lost and not missing:
            missing_first = block.start + first
        missing += lost
    return runs, (missing, missing_first)
