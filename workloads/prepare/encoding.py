"""The last step: staged rows to the arrays that training maps into memory."""

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.manifest import PARTS, array_file, array_shape
from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind, RawFormat
from workloads.prepare.staged import StagedFile
from workloads.prepare.vocabulary import Vocabulary
from workloads.prepare.workspace import Job, PlacedFile, done, key_of, step, threads
from workloads.split import Split

LAYOUT = 1  # of the marks that say a file is encoded


@dataclass(frozen=True)
class Arrays:
    """Where rows go, and what becomes of their values.

    Attributes:
        made: Folder of the arrays.
        splits: Rows of all splits, in time order.
        vocabularies: One for each categorical column.
        minimum: Smallest integer of the training split; None where no dense column holds integers.
    """

    made: Path
    raw: RawFormat
    splits: Mapping[Split, int]
    vocabularies: tuple[Vocabulary, ...]
    minimum: int | None


def create_arrays(folder: Path, raw: RawFormat, splits: Mapping[Split, int]) -> None:
    """Make the arrays of all rows in their full size."""
    for split, rows in splits.items():
        for part in PARTS:
            shape, dtype = array_shape(part, rows, dense=len(raw.dense), tables=len(raw.categorical))
            np.lib.format.open_memmap(folder / array_file(split, part), "w+", dtype, shape)


def write_rows(path: Path, row: int, block: npt.NDArray[np.generic]) -> None:
    """Write a block of rows into an array file, from a row on.

    Plain writes, not a memory map: a full disk then is an error that can be handled, not a signal that kills.
    """
    with path.open("r+b") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if block.dtype != dtype:
            raise TypeError(f"{path}: {block.dtype} rows for a {dtype} file")
        stream.seek(row * math.prod(shape[1:]) * dtype.itemsize, os.SEEK_CUR)
        stream.write(np.ascontiguousarray(block).data)


def encode(job: Job, into: Arrays, placed: PlacedFile, advance: Advance = unheard) -> dict[str, int]:
    """Write dense values, rows and labels of one file to their places in the arrays, unless an earlier run has.

    Returns:
        Positive labels of the file by split.
    """
    folder = job.work / f"encoded-{key_of(LAYOUT, into.made.name, placed.folder.name, placed.start)}"
    file = StagedFile(placed.folder)
    note = done(folder)
    if note is None:
        with step(folder) as (looked_up, note):
            _look_up(job, into, file, looked_up)
            note.update(dict.fromkeys(Split, 0))
            encode_block = partial(_encode_block, into, file, placed.start, looked_up)
            with ThreadPoolExecutor(threads()) as pool:
                for block, positives in enumerate(pool.map(encode_block, range(len(file.blocks))), start=1):
                    for split, count in positives.items():
                        note[split] += count
                    advance(0, file.start(block))
            for path in looked_up.iterdir():
                path.unlink()
    else:
        advance(0, file.rows)
    return {str(split): int(note[split]) for split in Split}


def scaled(integers: npt.NDArray[np.generic], *, minimum: int) -> npt.NDArray[np.float32]:
    """Natural log of x - minimum + 2, as in torchrec's `BinaryCriteoUtils.tsv_to_npys`; x below the minimum is clipped.

    The minimum is that of the training split over all integer columns, so a result is log 2 at least, in float32.
    """
    wide = integers.astype(np.int64)
    logs: npt.NDArray[np.float32] = np.log(np.maximum(wide, minimum) - (minimum - 2), dtype=np.float32)
    return logs


def _look_up(job: Job, into: Arrays, file: StagedFile, folder: Path) -> None:
    """Write the row of each entry of all dictionaries of a file, int32, into a file by column."""
    columns = range(len(into.vocabularies))
    at_once = min(threads(), len(columns))

    def one(column: int) -> None:
        dictionaries = [file.dictionary(column, block) for block in range(len(file.blocks))]
        with _rows_file(folder, column).open("wb") as stream:
            into.vocabularies[column].look_up(dictionaries, stream, limit=job.memory.divided(at_once).ranked_ids)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, columns))


def _rows_file(folder: Path, column: int) -> Path:
    return folder / f"rows_{column:03}"


def _encode_block(into: Arrays, file: StagedFile, file_start: int, looked_up: Path, number: int) -> dict[Split, int]:
    """Write one block; returns its positive labels by split."""
    block, labels = file.blocks[number], file.labels(number)
    dense = np.empty((block.rows, len(into.raw.dense)), np.float32)
    for position, column in enumerate(into.raw.dense):
        values = file.dense(position, number)
        if column.kind is Kind.DENSE_INTEGER:
            values = scaled(values, minimum=into.minimum or 0)
        dense[:, position] = values
    ids = np.empty((block.rows, len(into.vocabularies)), np.int32)
    for position, (place, vocabulary) in enumerate(zip(block.ids, into.vocabularies, strict=True)):
        rows = np.full(place.distinct + 1, vocabulary.missing_row, np.int32)
        rows[:-1] = np.fromfile(_rows_file(looked_up, position), np.int32, place.distinct, offset=4 * place.begin)
        ids[:, position] = rows[file.codes(position, number)]
    arrays: tuple[npt.NDArray[np.generic], ...] = (dense, ids, labels)
    positives = {}
    for split, inside, row in _spans(into.splits, file_start + file.start(number), block.rows):
        for part, array in zip(PARTS, arrays, strict=True):
            write_rows(into.made / array_file(split, part), row, array[inside])
        positives[split] = int(labels[inside].sum(dtype=np.int64))
    return positives


def _spans(splits: Mapping[Split, int], start: int, rows: int) -> Iterator[tuple[Split, slice, int]]:
    """The parts of a block that begins at a row of the dataset: split, rows of the block, first row in the split."""
    begin = 0
    for split, count in splits.items():
        low, high = max(start, begin), min(start + rows, begin + count)
        if low < high:
            yield split, slice(low - start, high - start), low - begin
        begin += count
