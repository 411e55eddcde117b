"""The last step: staged rows to the arrays that training maps into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.manifest import PARTS, ArrayFile, array_file
from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind, RawFormat
from workloads.prepare.staged import StagedFile
from workloads.prepare.vocabulary import Vocabulary
from workloads.prepare.workspace import Job, Memory, PlacedFile, done, key_of, step, threads
from workloads.split import Split

LAYOUT = 1  # of the marks that say a file is encoded


@dataclass(frozen=True)
class Arrays:
    """Where rows go, and what becomes of their values.

    Attributes:
        made: Folder of the arrays, which have their full size already.
        splits: Rows of all splits, in time order.
        vocabularies: One for each categorical column.
        minimum: Smallest integer of the training split; None where no dense column holds integers.
    """

    made: Path
    raw: RawFormat
    splits: Mapping[Split, int]
    vocabularies: tuple[Vocabulary, ...]
    minimum: int | None


def encode(job: Job, into: Arrays, placed: PlacedFile, advance: Advance = unheard) -> dict[str, int]:
    """Write dense values, rows and labels of one file to their places in the arrays, unless an earlier run has.

    Returns:
        Positive labels of the file by split.
    """
    folder = job.work / f"encoded-{key_of(LAYOUT, into.made.name, placed.folder.name, placed.start)}"
    file = StagedFile(placed.folder)
    note = done(folder)
    if note is None:
        with step(folder) as (maps, note):
            rows_of = _Rows(file, into.vocabularies, folder=maps, memory=job.memory)
            with _OpenArrays(into) as arrays, ThreadPoolExecutor(threads()) as pool:
                written = 0
                blocks = range(len(file.block_rows))
                encode_block = partial(_encode_block, arrays, file, placed.start, rows_of)
                for positives, rows in pool.map(encode_block, blocks):
                    for split, count in positives.items():
                        note[split] = note.get(split, 0) + count
                    written += rows
                    advance(0, written)
            rows_of.delete()
    else:
        advance(0, file.rows)
    return {str(split): int(note.get(split, 0)) for split in Split}


def scaled(integers: npt.NDArray[np.signedinteger], *, minimum: int) -> npt.NDArray[np.float32]:
    """Natural log of x - minimum + 2, as in torchrec's `BinaryCriteoUtils.tsv_to_npys`; x below the minimum is clipped.

    The minimum is that of the training split over all integer columns, so a result is log 2 at least, in float32.
    """
    wide = integers.astype(np.int64)
    logs: npt.NDArray[np.float32] = np.log(np.maximum(wide, minimum) - (minimum - 2), dtype=np.float32)
    return logs


class _Rows:
    """For each block and column, the row of each entry of its dictionary, in a file by column."""

    def __init__(self, file: StagedFile, vocabularies: tuple[Vocabulary, ...], *, folder: Path, memory: Memory) -> None:
        self._folder = folder
        self._vocabularies = vocabularies
        blocks = range(len(file.block_rows))
        sizes = [[file.distinct(column, block) for block in blocks] for column in range(len(vocabularies))]
        self._starts = [np.concatenate(([0], np.cumsum(size))) for size in sizes]
        parts = min(threads(), len(vocabularies))
        limit = memory.divided(parts).ranked_ids
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda column: self._look_up(file, column, limit), range(len(vocabularies))))

    def of(self, column: int, block: int) -> npt.NDArray[np.int32]:
        """Rows of the dictionary's entries, int32 `[distinct + 1]`; that of a missing id last."""
        start, stop = self._starts[column][block : block + 2]
        found = np.fromfile(self._path(column), np.int32, stop - start, offset=4 * int(start))
        return np.append(found, np.int32(self._vocabularies[column].missing_row))

    def delete(self) -> None:
        """Remove the files."""
        for column in range(len(self._vocabularies)):
            self._path(column).unlink()

    def _look_up(self, file: StagedFile, column: int, limit: int) -> None:
        with self._path(column).open("wb") as stream:
            for part in self._vocabularies[column].slices(limit):
                for block in range(len(file.block_rows)):
                    values = file.values(column, block)
                    span = part.span(values)
                    stream.seek(4 * (int(self._starts[column][block]) + span.start))
                    stream.write(part.look_up(values[span]).data)

    def _path(self, column: int) -> Path:
        return self._folder / f"rows_{column:03}"


class _OpenArrays:
    """The arrays of all splits, open for writing at any place."""

    def __init__(self, into: Arrays) -> None:
        self.into = into
        self._files: dict[tuple[Split, str], tuple[int, ArrayFile]] = {}

    def __enter__(self) -> _OpenArrays:
        shapes = array_shapes(self.into.raw, self.into.splits)
        for (split, part), array in shapes.items():
            path = self.into.made / array_file(split, part)
            self._files[split, part] = os.open(path, os.O_WRONLY), array
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor, _array in self._files.values():
            os.close(descriptor)

    def write(self, split: Split, part: str, row: int, block: npt.NDArray[np.generic]) -> None:
        """Write rows of a split at their place.

        Plain writes, not a memory map: a full disk then is an error that can be handled, not a signal that kills.
        """
        descriptor, array = self._files[split, part]
        if block.dtype != array.dtype:
            raise TypeError(f"{split} {part}: {block.dtype} rows for a {array.dtype} file")
        data = np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
        offset = array.offset(row)
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written


def array_shapes(raw: RawFormat, splits: Mapping[Split, int]) -> dict[tuple[Split, str], ArrayFile]:
    """Shape and dtype of every array of rows, by split and part."""
    dense, tables = len(raw.dense), len(raw.categorical)
    return {
        (split, part): ArrayFile.of(part, rows, dense=dense, tables=tables)
        for split, rows in splits.items()
        for part in PARTS
    }


def _encode_block(
    arrays: _OpenArrays, file: StagedFile, file_start: int, rows_of: _Rows, block: int
) -> tuple[dict[str, int], int]:
    """Write one block; returns its positive labels by split, and its rows."""
    into = arrays.into
    rows = file.block_rows[block]
    labels = file.labels(block)
    dense = np.empty((rows, len(into.raw.dense)), np.float32)
    for position, column in enumerate(into.raw.dense):
        if column.kind is Kind.DENSE_INTEGER:
            dense[:, position] = scaled(file.integers(position, block), minimum=into.minimum or 0)
        else:
            dense[:, position] = file.floats(position, block)
    ids = np.empty((rows, len(into.vocabularies)), np.int32)
    for position in range(len(into.vocabularies)):
        ids[:, position] = rows_of.of(position, block)[file.codes(position, block)]
    positives = {}
    for split, inside, row in _spans(into.splits, file_start + file.start(block), rows):
        arrays.write(split, "dense", row, dense[inside])
        arrays.write(split, "ids", row, ids[inside])
        arrays.write(split, "labels", row, labels[inside])
        positives[str(split)] = int(labels[inside].sum(dtype=np.int64))
    return positives, rows


def _spans(splits: Mapping[Split, int], start: int, rows: int) -> Iterator[tuple[Split, slice, int]]:
    """The parts of a block that begins at a row of the dataset: split, rows of the block, first row in the split."""
    begin = 0
    for split, count in splits.items():
        low, high = max(start, begin), min(start + rows, begin + count)
        if low < high:
            yield split, slice(low - start, high - start), low - begin
        begin += count
