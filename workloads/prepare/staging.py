"""The first two steps, file by file: raw rows to columns on disk, and counts of the ids of the training rows.

Each block of an id column is a sorted dictionary and codes into it.

Where training ends is known only once all files have been read, so that counting and encoding come later; the
dictionaries make both cheap, since a block has far fewer distinct ids than rows.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
from pydantic import TypeAdapter

from workloads import DataError
from workloads.manifest import FileRecord
from workloads.prepare.formats import Kind, RawColumn, RawFormat
from workloads.prepare.lines import RawFile, ahead, is_parquet
from workloads.prepare.text import RowChecks, TextRows, refusals, typed
from workloads.prepare.vocabulary import CountedIds, SortedIds, Stored, merged, missing_in, write_run
from workloads.prepare.workspace import Advance, Finished, Job, identity, key_of, step, threads

DATA, INDEX = "data", "index.json"
FIRST_ROWS = 4096  # read of a Parquet file before it is known how long its texts are
_T = TypeVar("_T")


class StagedIds(NamedTuple):
    """A block of an id column.

    Attributes:
        dictionary: Its distinct ids.
        codes: A position in the dictionary for each row; its length for a missing id.
    """

    dictionary: SortedIds
    codes: Stored


class StagedBlock(NamedTuple):
    """A block of rows.

    Attributes:
        start, rows: The first row in the file, and their number.
        labels: uint8 `[rows]`, 0 or 1.
        dense: Columns `[rows]`: integers of any width, or float32.
        ids: By column; first rows count from the file's beginning.
    """

    start: int
    rows: int
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
    before = identity(path)
    folder = job.work / f"staged-{key_of(job.raw, before, str(job.work))}"  # its index has paths

    def fill(made: Path) -> dict[str, Any]:
        checks = RowChecks(path, allowed=job.settings.skip_bad_rows, time=job.raw.time)
        text, parquet = RawFile(path), is_parquet(path)
        block_bytes = job.memory.text_block_bytes
        if parquet:
            frames = _parquet_frames(job.raw, path, checks, block_bytes)
        else:
            frames = TextRows(job.raw, text, checks).frames(block_bytes)
        blocks: list[StagedBlock] = []
        times: list[int] = []
        rows = 0
        with (made / DATA).open("wb") as stream, ThreadPoolExecutor(threads()) as pool:

            def write(array: npt.NDArray[np.generic]) -> Stored:
                """Append an array."""
                stream.write(bytes(-stream.tell() % 8))  # so that what is mapped is aligned
                offset = stream.tell()
                stream.write(np.ascontiguousarray(array).data)
                return Stored(folder / DATA, array.dtype.str, array.size, offset)

            for frame in ahead(frames):
                if frame.height:
                    blocks.append(_write_block(frame, job.raw, write, pool, start=rows))
                    rows += frame.height
                    times += frame[job.raw.time.name].to_numpy()[[0, -1]].tolist() if job.raw.time else []
                advance(text.bytes_read)
        if rows == 0:
            raise DataError(f"{path} holds no good row: download it again, or leave it out")
        if path.is_file() and identity(path) != before:
            raise DataError(f"{path} changed while it was read: prepare it again once it is complete")
        (made / INDEX).write_text(json.dumps(blocks, default=str))
        sha256 = FileRecord.of(path).sha256 if parquet else text.sha256
        note = {"bytes": text.bytes_read or path.stat().st_size, "sha256": sha256, "rows": rows}
        return note | {"problems": checks.problems, "times": [*times[:1], *times[-1:]]}

    return step(folder, fill)


def _write_block(
    frame: pl.DataFrame,
    raw: RawFormat,
    write: Callable[[npt.NDArray[np.generic]], Stored],
    pool: Executor,
    *,
    start: int,
) -> StagedBlock:
    """Write the columns of a frame, whose first row in the file is `start`."""
    labels = write(frame[raw.label.name].to_numpy())
    dense = [write(frame[column.name].shrink_dtype().to_numpy()) for column in raw.dense]
    ids = []
    for dictionary, codes in pool.map(_factorized, (frame[column.name] for column in raw.categorical)):
        values, counts, first = (write(part) for part in dictionary)
        ids.append(StagedIds(SortedIds(values, counts, first, start), write(codes)))
    return StagedBlock(start, frame.height, labels, dense, ids)


def _factorized(series: pl.Series) -> tuple[CountedIds, npt.NDArray[np.unsignedinteger]]:
    """The dictionary of a column, and the code of each row in it.

    Codes are positions in the sorted values, their number for a missing id, which counts and first rows, uint32, have
    behind the others.
    """
    found, distinct = pd.factorize(series.drop_nulls().to_numpy(), sort=True)
    codes = np.full(len(series), len(distinct), np.min_scalar_type(len(distinct)))
    codes[series.is_not_null().to_numpy()] = found
    counts = np.bincount(codes, minlength=len(distinct) + 1).astype(np.uint32)
    first = np.zeros(len(distinct) + 1, np.uint32)
    first[codes[::-1]] = np.arange(len(series), dtype=np.uint32)[::-1]  # the last one written stays
    return CountedIds(distinct, counts, first), codes


def count(job: Job, part: tuple[Path, int], advance: Advance) -> Finished:
    """Count the training ids of each column of one file, unless an earlier run has.

    `part` is the folder of the staged file, and how many of its leading rows train. The folder that is made holds, for
    each column, what `write_run` writes of its ids. The note has the smallest dense integer, `minimum`; None for none.
    """
    staged, rows = part
    integers = [i for i, column in enumerate(job.raw.dense) if column.kind is Kind.DENSE_INTEGER]
    columns = len(job.raw.categorical)
    at_once = min(threads(), columns)
    limit = job.memory.ids(at_once)

    def fill(made: Path) -> dict[str, Any]:
        blocks = [(block, min(block.rows, rows - block.start)) for block in staged_blocks(staged) if block.start < rows]

        def one(column: int) -> None:
            runs = [block.ids[column].dictionary for block, _ in blocks]
            last, inside = blocks[-1]
            if inside < last.rows:  # behind the columns' own files lie those of what is left of a block
                runs[-1] = _cut(last.ids[column], inside, made, columns + column)
            write_run(made, column, merged(runs, limit=limit), missing=missing_in(runs))

        with ThreadPoolExecutor(at_once) as pool:
            for position, _ in enumerate(pool.map(one, range(columns)), start=1):
                advance(rows * position // columns)
        minima = (int(block.dense[i].read(0, inside).min()) for block, inside in blocks for i in integers)
        return {"minimum": min(minima, default=None)}

    return step(job.work / f"counted-{key_of(staged.name, rows, integers)}", fill)


def _cut(ids: StagedIds, rows: int, folder: Path, number: int) -> SortedIds:
    """The dictionary of the leading rows of a block alone, written anew as that of a column."""
    whole, distinct = ids.dictionary, ids.dictionary.values.length
    counts = np.bincount(ids.codes.read(0, rows), minlength=distinct + 1)
    kept = np.flatnonzero(counts[:-1])
    values, _, first = whole.read(0, distinct)
    missing = int(counts[-1]), missing_in([whole])[1]
    write_run(folder, number, [CountedIds(values[kept], counts[kept].astype(np.int64), first[kept])], missing=missing)
    return SortedIds.whole(folder, number)


def _parquet_frames(raw: RawFormat, path: Path, checks: RowChecks, block_bytes: int) -> Iterator[pl.DataFrame]:
    """The good rows of a Parquet file, in order, in frames of about `block_bytes`, typed as `TextRows` types them.

    Values are read as the text they are. Columns are found by name, others are not read.

    Raises:
        DataError: the file cannot be read, lacks a column or has one that is no text of its kind, is not in time order,
            or has more bad rows than allowed.
    """

    def read(what: str, reader: Callable[[], _T]) -> _T:
        try:
            return reader()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(f"{path}: {what} cannot be read ({reason}): write or download it again") from error

    used, scan = raw.used, pl.scan_parquet(path, glob=False)
    schema = read("the footer", scan.collect_schema)
    missing = [column.name for column in used if column.name not in schema]
    if missing:
        among = ", ".join(schema)[:300]
        raise DataError(f"{path}: no column {', '.join(missing)} among {among}: put the schema file right")
    rows = read("the footer", scan.select(pl.len()).collect).item()
    if rows == 0:
        raise DataError(f"{path} is empty: give a file with rows")
    selected = scan.select(_text(column, schema[column.name]) for column in used)
    start, step = 0, FIRST_ROWS
    while start < rows:
        texts = read(f"rows {start + 1} to {min(start + step, rows)}", selected.slice(start, step).collect)
        frame, good = typed(texts, used)
        fields = ([(text or "").encode() for text in row] for row in texts.iter_rows())
        refused = {} if all(column.all() for column in good) else refusals(used, fields, good)
        yield checks.good(frame, refused, first=start + 1, word=" row ")
        start += texts.height
        step = max(1, texts.height * block_bytes // max(1, int(texts.estimated_size())))


def _text(column: RawColumn, dtype: pl.DataType) -> pl.Expr:
    """A value as text, null where it is missing; nothing is a missing id, as in text."""
    value = pl.col(column.name)
    if column.kind is Kind.LABEL:  # true, and 1.0, are 1
        return value.cast(pl.Float64).cast(pl.String).str.strip_suffix(".0")
    if dtype.is_temporal():
        value = value.cast(pl.Datetime("us")).to_physical()
    text = value.cast(pl.String)
    return text.replace("", None) if column.kind.categorical else text
