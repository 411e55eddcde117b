"""A raw file once it is staged: its columns on disk, blocks of ids as a sorted dictionary with codes into it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from workloads.prepare.workspace import done

INDEX = "index.json"

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
        """The dictionary of a column and the code of each row: its position in `values`, their number for a missing id.

        `values` are uint64 `[rows]`, `missing` bool `[rows]`, or None where no id is missing.
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
        narrow = np.min_scalar_type(len(distinct))
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
        """The dictionary of the leading rows alone, given their codes."""
        counts = np.bincount(codes, minlength=len(self.values) + 1)
        kept = np.flatnonzero(counts[:-1])
        lost = int(counts[-1])
        return IdBlock(
            self.values[kept], counts[kept].astype(np.uint32), self.first[kept], lost, self.missing_first if lost else 0
        )


class StagedFile:
    """Reads what `stage` wrote: by block the rows, the smallest dense integer, and the columns."""

    def __init__(self, folder: Path) -> None:
        note = done(folder)
        if note is None:
            raise FileNotFoundError(folder / INDEX)
        self.folder = folder
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
        path = self.folder / dense_file(column)
        array: npt.NDArray[np.signedinteger] = np.fromfile(path, dtype, self.block_rows[block], offset=offset)
        return array

    def floats(self, column: int, block: int) -> npt.NDArray[np.float32]:
        """A dense column of floats, float32 `[rows]`."""
        offset, _ = self._dense[block][column]
        return np.fromfile(self.folder / dense_file(column), np.float32, self.block_rows[block], offset=offset)

    def ids(self, column: int, block: int, entries: slice = slice(None)) -> IdBlock:
        """The dictionary of one block, or some of its entries."""
        path = self.folder / id_file(column)
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
        return np.fromfile(self.folder / id_file(column), np.uint64, distinct, offset=offset)

    def codes(self, column: int, block: int) -> Codes:
        """Codes `[rows]` into the dictionary of one block; its length stands for a missing id."""
        offset, distinct, width, *_ = self._ids[block][column]
        array: Codes = np.fromfile(
            self.folder / id_file(column), np.dtype(f"<u{width}"), self.block_rows[block], offset=offset + 16 * distinct
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


def dense_file(position: int) -> str:
    """Name of the file of a dense column."""
    return f"dense_{position:03}"


def id_file(position: int) -> str:
    """Name of the file of an id column."""
    return f"ids_{position:03}"
