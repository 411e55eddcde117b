"""The first step: raw files to columns on disk, each block of an id column as a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from workloads.errors import DataError
from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind, RawFormat
from workloads.prepare.read.checks import BadRows
from workloads.prepare.read.lines import RawFile, ahead, is_parquet
from workloads.prepare.read.parquet import ParquetRows
from workloads.prepare.read.text import TextRows
from workloads.prepare.staged import INDEX, Codes, IdBlock, dense_file, id_file
from workloads.prepare.workspace import Job, done, identity, key_of, step, threads

LAYOUT = 1  # of a staging folder: a change makes finished ones worthless


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
    bad = BadRows(path, allowed=job.settings.skip_bad_rows)
    with step(folder) as (made, note), _Columns(made, job.raw) as columns:
        reader = ParquetRows(job.raw, path, bad) if is_parquet(path) else TextRows(job.raw, RawFile(path), bad)
        for frame in ahead(reader.frames(job.memory.text_block_bytes)):
            columns.append(frame)
            advance(reader.bytes_read, columns.rows)
        note |= {"bytes": reader.bytes_read, "sha256": reader.sha256}
        advance(reader.bytes_read, columns.rows)
        if columns.rows == 0:
            raise DataError(f"{path} holds no good row: download it again, or leave it out")
        if path.is_file() and identity(path) != before:
            raise DataError(f"{path} changed while it was read: prepare it again once it is complete")
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
        names = ["labels", *(dense_file(i) for i in range(len(self._raw.dense)))]
        names += [id_file(i) for i in range(len(self._raw.categorical))]
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
        stream = self._streams[dense_file(position)]
        array = values.to_numpy()
        if array.dtype != np.float32:
            # the narrowest integers: n bits hold as many numbers below 0 as from 0 on
            array = array.astype(np.min_scalar_type(min(int(array.min()), -1 - int(array.max()))))
        offset = stream.tell()
        stream.write(np.ascontiguousarray(array).data)
        return offset, array.dtype.str

    def _append_ids(self, position: int, block: IdBlock, codes: Codes) -> tuple[int, int, int, int, int]:
        stream = self._streams[id_file(position)]
        offset = stream.tell()
        for array in (block.values, block.counts, block.first, codes):
            stream.write(np.ascontiguousarray(array).data)
        return offset, len(block.values), codes.itemsize, block.missing, block.missing_first


def _factorized(series: pl.Series) -> tuple[IdBlock, Codes]:
    missing = series.is_null().to_numpy() if series.null_count() else None
    return IdBlock.of(series.fill_null(0).to_numpy(), missing)
