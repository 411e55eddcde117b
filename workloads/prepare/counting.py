"""The second step: how often each id comes in the training rows of one file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind
from workloads.prepare.merging import Counted, Run, merged, write_runs
from workloads.prepare.staged import IdBlock, StagedFile
from workloads.prepare.workspace import Job, done, key_of, step, threads

LAYOUT = 1  # of a counting folder


class TrainingPart(NamedTuple):
    """The leading rows of a staged file that train: its folder, and their number."""

    staged: Path
    rows: int


def count(job: Job, part: TrainingPart, advance: Advance = unheard) -> Path:
    """Count the training ids of each column of one file, unless an earlier run has.

    Returns:
        A folder that holds, for each column, its ids by value with their counts and first rows.
    """
    integers = tuple(i for i, column in enumerate(job.raw.dense) if column.kind is Kind.DENSE_INTEGER)
    folder = job.work / f"counted-{key_of(LAYOUT, part.staged.name, part.rows, integers)}"
    if done(folder) is not None:
        advance(0, part.rows)
        return folder
    file = StagedFile(part.staged)
    columns = len(job.raw.categorical)
    at_once = min(threads(), columns)
    limit = job.memory.divided(at_once).merged_ids
    with step(folder) as (made, note), ThreadPoolExecutor(at_once) as pool:

        def one(column: int) -> tuple[int, int]:
            runs, missing = _runs(file, column, part.rows)
            write_runs(made, column, merged(runs, limit=limit))
            return missing

        note["missing"] = []
        for position, missing in enumerate(pool.map(one, range(columns)), start=1):
            note["missing"].append(missing)
            advance(0, part.rows * position // columns)
        note["minimum"] = file.minimum(part.rows, integers)
    return folder


def _runs(file: StagedFile, column: int, rows: int) -> tuple[list[Run], tuple[int, int]]:
    """The dictionaries of a column in the leading rows; the rows without an id, and the first of them."""
    runs: list[Run] = []
    missing, missing_first = 0, 0
    for block, inside in file.blocks_before(rows):
        leading = None
        lost, first = file.missing(column, block)
        if inside < file.block_rows[block]:
            leading = file.ids(column, block).leading(file.codes(column, block)[:inside])
            lost = leading.missing
        runs.append(_BlockRun(file, column, block, leading))
        if lost and not missing:
            missing_first = file.start(block) + first
        missing += lost
    return runs, (missing, missing_first)


@dataclass(frozen=True)
class _BlockRun:
    """The dictionary of one staged block; `leading` where only its first rows count."""

    file: StagedFile
    column: int
    block: int
    leading: IdBlock | None = None

    @property
    def length(self) -> int:
        return self.file.distinct(self.column, self.block) if self.leading is None else len(self.leading.values)

    def values(self) -> npt.NDArray[np.uint64]:
        return self.file.values(self.column, self.block) if self.leading is None else self.leading.values

    def read(self, start: int, stop: int) -> Counted:
        if self.leading is None:
            ids = self.file.ids(self.column, self.block, slice(start, stop))
        else:
            ids = self.leading.entries(slice(start, stop))
        first = ids.first + np.int64(self.file.start(self.block))
        return Counted(ids.values, ids.counts.astype(np.int64), first)
