"""The second step: how often each id comes in the training rows of one file."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workloads.prepare.cluster import Advance, unheard
from workloads.prepare.columns import Kind
from workloads.prepare.merging import Counted, Run, merged, write_run
from workloads.prepare.staged import StagedFile
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
        cut = made / "cut"
        cut.mkdir()

        def one(column: int) -> tuple[int, int]:
            runs, missing = _runs(file, column, part.rows, cut)
            write_run(made, column, merged(runs, limit=limit))
            return missing

        note["missing"] = []
        for position, missing in enumerate(pool.map(one, range(columns)), start=1):
            note["missing"].append(missing)
            advance(0, part.rows * position // columns)
        note["minimum"] = file.minimum(part.rows, integers)
        shutil.rmtree(cut)
    return folder


def _runs(file: StagedFile, column: int, rows: int, cut: Path) -> tuple[list[Run], tuple[int, int]]:
    """The dictionaries of a column in the leading rows; the rows without an id, and the first of them.

    That of a block of which a part trains is written anew, into the folder `cut`.
    """
    runs: list[Run] = []
    missing = missing_first = 0
    for block, inside in file.blocks_before(rows):
        run, place = file.dictionary(column, block), file.blocks[block].ids[column]
        lost = place.missing
        if inside < file.blocks[block].rows:
            counts = np.bincount(file.codes(column, block)[:inside], minlength=run.length + 1)
            kept, lost = np.flatnonzero(counts[:-1]), int(counts[-1])
            ids = run.read(0, run.length)
            write_run(cut, column, [Counted(ids.values[kept], counts[kept].astype(np.int64), ids.first[kept])])
            run = Run.whole(cut, column)
        runs.append(run)
        if lost and not missing:
            missing_first = file.start(block) + place.missing_first
        missing += lost
    return runs, (missing, missing_first)
