"""A raw file once it is staged: its columns on disk, blocks of ids as a sorted dictionary with codes into it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.prepare.merging import Run, column_file

INDEX = "index.json"

Codes = npt.NDArray[np.unsignedinteger]


class DensePlace(NamedTuple):
    """Where a block of a dense column lies in its file, and as what type."""

    offset: int
    dtype: str


class IdPlace(NamedTuple):
    """Where a block of an id column lies.

    Attributes:
        begin, distinct: First entry of its dictionary in the column's files, and how many it has.
        offset, dtype: Where the codes lie in their file, and as what type; code `distinct` is a missing id.
        missing, missing_first: Rows without an id, and the first of them.
    """

    begin: int
    distinct: int
    offset: int
    dtype: str
    missing: int
    missing_first: int


class Block(NamedTuple):
    """A block of rows: their number, its smallest dense integer, and where its columns lie."""

    rows: int
    minimum: int
    dense: list[DensePlace]
    ids: list[IdPlace]


class StagedFile:
    """Reads what `stage` wrote, block by block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks = [
            Block(rows, minimum, [DensePlace(*place) for place in dense], [IdPlace(*place) for place in ids])
            for rows, minimum, dense, ids in json.loads((folder / INDEX).read_bytes())
        ]
        self._starts = np.cumsum([0, *(block.rows for block in self.blocks)]).tolist()

    @property
    def rows(self) -> int:
        """Good rows of the file."""
        return int(self._starts[-1])

    def start(self, block: int) -> int:
        """Row of the file at which a block starts."""
        return int(self._starts[block])

    def labels(self, block: int) -> npt.NDArray[np.uint8]:
        """uint8 `[rows]`, 0 or 1."""
        return np.fromfile(self.folder / "labels", np.uint8, self.blocks[block].rows, offset=self.start(block))

    def dense(self, column: int, block: int) -> npt.NDArray[np.generic]:
        """A dense column, `[rows]`: integers of any width, or float32."""
        place, path = self.blocks[block].dense[column], dense_file(self.folder, column)
        return np.fromfile(path, np.dtype(place.dtype), self.blocks[block].rows, offset=place.offset)

    def dictionary(self, column: int, block: int) -> Run:
        """The distinct ids of a block, the missing one apart; their first rows count from the file's beginning."""
        place = self.blocks[block].ids[column]
        return Run(self.folder, column, place.begin, place.distinct, self.start(block), np.uint32)

    def codes(self, column: int, block: int) -> Codes:
        """Codes `[rows]` into the dictionary of a block; its length stands for a missing id."""
        place, path = self.blocks[block].ids[column], column_file(self.folder, column, "codes")
        codes: Codes = np.fromfile(path, np.dtype(place.dtype), self.blocks[block].rows, offset=place.offset)
        return codes

    def blocks_before(self, row: int) -> Iterator[tuple[int, int]]:
        """Blocks that hold rows before one, with the number of these rows."""
        for number, block in enumerate(self.blocks):
            inside = min(block.rows, row - self.start(number))
            if inside <= 0:
                return
            yield number, inside

    def minimum(self, rows: int, integer_columns: Sequence[int]) -> int | None:
        """Smallest dense integer of the leading rows, None where there is no such column or row."""
        found = []
        for block, inside in self.blocks_before(rows) if integer_columns else ():
            if inside == self.blocks[block].rows:
                found.append(self.blocks[block].minimum)
            else:
                found += [int(np.min(self.dense(column, block)[:inside])) for column in integer_columns]
        return min(found, default=None)


def dense_file(folder: Path, column: int) -> Path:
    """The file of a dense column."""
    return folder / f"dense_{column:03}"
