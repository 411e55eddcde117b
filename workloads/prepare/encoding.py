"""The last step: staged rows to the arrays that training maps into memory."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.manifest import PARTS, array_file, array_shape
from workloads.prepare.formats import Kind, RawFormat
from workloads.prepare.staging import StagedBlock, staged_blocks
from workloads.prepare.vocabulary import Stored, Vocabulary, column_file
from workloads.prepare.workspace import Advance, Job, key_of, step, sync, threads
from workloads.schema import Split


@dataclass(frozen=True)
class Arrays:
    """The arrays that rows are written to, and the rules for their values.

    Attributes:
        made: Folder of the arrays.
        splits: Rows of all splits, in time order.
        vocabularies: One for each categorical column.
        minimum: Smallest integer of the training split; None where no dense column holds integers.
    """

    made: Path
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
        stream.seek(row * math.prod(shape[1:]) * dtype.itemsize, os.SEEK_CUR)
        stream.write(np.ascontiguousarray(block, dtype).data)


def encode(job: Job, into: Arrays, placed: tuple[Path, int], advance: Advance) -> dict[str, int]:
    """Write dense values, rows and labels of one file to their places in the arrays, unless an earlier run has.

    `placed` is the folder of the staged file, and the row of the dataset at which it begins.

    Returns:
        Positive labels of the file by split.
    """
    folder, start = placed
    blocks = staged_blocks(folder)
    columns = range(len(into.vocabularies))
    limit = job.memory.ids(min(threads(), len(columns)))

    def fill(looked_up: Path) -> dict[str, int]:
        def look_up(column: int) -> list[int]:
            """Write the row of each entry of the dictionaries, int32; returns where those of each block begin."""
            dictionaries = [block.ids[column].dictionary for block in blocks]
            with column_file(looked_up, column, "rows").open("wb") as stream:
                return into.vocabularies[column].look_up(dictionaries, stream, limit=limit)

        def write(number: int) -> dict[str, int]:
            rows = (
                Stored(column_file(looked_up, i, "rows"), "i", begin[-1]).read(begin[number], begin[number + 1])
                for i, begin in enumerate(begins)
            )
            return _write_block(job.raw, into, blocks[number], rows, file_start=start)

        positives = Counter(dict.fromkeys(map(str, Split), 0))
        with ThreadPoolExecutor(job.memory.blocks(threads())) as pool:
            begins = list(pool.map(look_up, columns))
            for block, found in zip(blocks, pool.map(write, range(len(blocks))), strict=True):
                positives.update(found)
                advance(block.start)
        for column in columns:
            column_file(looked_up, column, "rows").unlink()
        for split in into.splits:  # before a mark on the drive says that the rows are there
            for part in PARTS:
                sync(into.made / array_file(split, part))
        return positives

    return step(job.work / f"encoded-{key_of(into.made.name, folder.name, start)}", fill).note


def scaled(integers: npt.NDArray[np.generic], *, minimum: int) -> npt.NDArray[np.float32]:
    """Natural log of x - minimum + 2, as in torchrec's `BinaryCriteoUtils.tsv_to_npys`; x below the minimum is clipped.

    The minimum is that of the training split over all integer columns, so a result is log 2 at least, in float32.
    """
    wide = integers.astype(np.int64)
    logs: npt.NDArray[np.float32] = np.log(np.maximum(wide, minimum) - (minimum - 2), dtype=np.float32)
    return logs


def _write_block(
    raw: RawFormat, into: Arrays, block: StagedBlock, rows: Iterable[npt.NDArray[np.int32]], *, file_start: int
) -> dict[str, int]:
    """Write one block, with the rows of its dictionaries by column; returns its positive labels by split."""
    labels = block.labels.read()
    dense = np.empty((block.rows, len(raw.dense)), np.float32)
    for position, column in enumerate(raw.dense):
        values = block.dense[position].read()
        dense[:, position] = scaled(values, minimum=into.minimum or 0) if column.kind is Kind.DENSE_INTEGER else values
    ids = np.empty((block.rows, len(into.vocabularies)), np.int32)
    for position, (known, vocabulary) in enumerate(zip(rows, into.vocabularies, strict=True)):
        ids[:, position] = np.append(known, np.int32(vocabulary.missing_row))[block.ids[position].codes.read()]
    positives = {}
    first, begin = file_start + block.start, 0  # rows of the dataset at which the block and the split begin
    for split, count in into.splits.items():
        low, high = max(first, begin), min(first + block.rows, begin + count)
        if low < high:
            inside = slice(low - first, high - first)
            for part, array in zip(PARTS, (dense, ids, labels), strict=True):
                write_rows(into.made / array_file(split, part), low - begin, array[inside])
            positives[str(split)] = int(labels[inside].sum(dtype=np.int64))
        begin += count
    return positives
