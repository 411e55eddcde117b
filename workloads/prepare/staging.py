"""The first step: raw files to columns on disk, each block of an id column as a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl

from workloads.errors import DataError
from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind, RawFormat
from workloads.prepare.merging import Counted, column_file
from workloads.prepare.read.checks import RowChecks
from workloads.prepare.read.lines import RawFile, ahead, is_parquet
from workloads.prepare.read.parquet import ParquetRows
from workloads.prepare.read.text import TextRows
from workloads.prepare.staged import INDEX, Block, Codes, DensePlace, IdPlace, dense_file
from workloads.prepare.workspace import Job, done, identity, key_of, step, threads

LAYOUT = 2  # of a staging folder: a change makes finished ones worthless


def stage(job: Job, path: Path, advance: Advance = unheard) -> Path:
    """Parse a raw file into a folder of columns, for `StagedFile`, unless an earlier run has finished it.

    Raises:
        DataError: the file cannot be read, holds more bad rows than allowed or no good one, or changes meanwhile.
    """
    try:
        before = identity(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    folder = job.work / f"staged-{key_of(LAYOUT, job.raw.fingerprint, before)}"
    if (note := done(folder)) is not None:
        advance(note["bytes"], note["rows"])
        return folder
    checks = RowChecks(path, allowed=job.settings.skip_bad_rows, time=job.raw.time)
    with step(folder) as (made, note), _Columns(made, job.raw) as columns:
        file = ParquetRows(job.raw, path, checks) if is_parquet(path) else RawFile(path)
        rows = TextRows(job.raw, file, checks) if isinstance(file, RawFile) else file
        for frame in ahead(rows.frames(job.memory.text_block_bytes)):
            columns.append(frame)
            advance(file.bytes_read, columns.rows)
        advance(file.bytes_read, columns.rows)
        if columns.rows == 0:
            raise DataError(f"{path} holds no good row: download it again, or leave it out")
        if path.is_file() and identity(path) != before:
            raise DataError(f"{path} changed while it was read: prepare it again once it is complete")
        note |= {"bytes": file.bytes_read, "sha256": file.sha256, "rows": columns.rows}
        note |= {"problems": checks.problems, "times": columns.times}
    return folder


class _Columns:
    """Writes the columns of one file block by block, and at the end where each block lies."""

    def __init__(self, folder: Path, raw: RawFormat) -> None:
        self._folder = folder
        self._raw = raw
        self._blocks: list[Block] = []
        self._entries = [0] * len(raw.categorical)
        self.rows = 0
        self.times: list[int] = []

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(threads()))
        paths = [self._folder / "labels", *(dense_file(self._folder, i) for i in range(len(self._raw.dense)))]
        for i in range(len(self._raw.categorical)):
            paths += [column_file(self._folder, i, part) for part in (*Counted._fields, "codes")]
        self._streams = {path: self._stack.enter_context(path.open("wb")) for path in paths}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        (self._folder / INDEX).write_text(json.dumps(self._blocks))

    def append(self, frame: pl.DataFrame) -> None:
        """Write one block."""
        if frame.height == 0:
            return
        if self._raw.time:
            times = frame[self._raw.time.name]
            self.times = [self.times[0] if self.times else int(times[0]), int(times[-1])]
        self._write(self._folder / "labels", frame[self._raw.label.name].to_numpy())
        dense = [self._append_dense(i, frame[column.name]) for i, column in enumerate(self._raw.dense)]
        integers = [frame[column.name] for column in self._raw.dense if column.kind is Kind.DENSE_INTEGER]
        series = [frame[column.name] for column in self._raw.categorical]
        ids = [self._append_ids(i, *found) for i, found in enumerate(self._pool.map(_factorized, series))]
        minimum = min((int(values.to_numpy().min()) for values in integers), default=0)
        self._blocks.append(Block(frame.height, minimum, dense, ids))
        self.rows += frame.height

    def _append_dense(self, position: int, values: pl.Series) -> DensePlace:
        array = values.to_numpy()
        if array.dtype != np.float32:
            # the narrowest integers: n bits hold as many numbers below 0 as from 0 on
            array = array.astype(np.min_scalar_type(min(int(array.min()), -1 - int(array.max()))))
        return DensePlace(self._write(dense_file(self._folder, position), array), array.dtype.str)

    def _append_ids(self, position: int, ids: Counted, codes: Codes, missing: npt.NDArray[np.intp]) -> IdPlace:
        for part, array in ids._asdict().items():
            self._write(column_file(self._folder, position, part), array)
        offset = self._write(column_file(self._folder, position, "codes"), codes)
        begin, distinct = self._entries[position], len(ids.values)
        self._entries[position] += distinct
        first = int(missing[0]) if len(missing) else 0
        return IdPlace(begin, distinct, offset, codes.dtype.str, len(missing), first)

    def _write(self, path: Path, array: npt.NDArray[np.generic]) -> int:
        """Append to a file; returns the place."""
        offset = self._streams[path].tell()
        self._streams[path].write(np.ascontiguousarray(array).data)
        return offset


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
