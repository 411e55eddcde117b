"""The second step: how often each id comes in the training rows of one file."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from workloads.prepare.cluster import Advance
from workloads.prepare.formats import Kind
from workloads.prepare.merging import Counted, Run, merged, write_run
from workloads.prepare.staging import StagedFile
from workloads.prepare.workspace import Finished, Job, key_of, step, threads

LAYOUT = 1  # of a counting folder


def count(job: Job, part: tuple[Path, int], advance: Advance) -> Finished:
    """Count the training ids of each column of one file, unless an earlier run has.

    `part` is the folder of the staged file, and how many of its leading rows train. The folder that is made holds, for
    each column, its ids by value with their counts and first rows. The note has the rows without an id by column,
    `missing`, each with the first of them, and the smallest dense integer, `minimum`; None for none.
    """
    staged, rows = part
    integers = tuple(i for i, column in enumerate(job.raw.dense) if column.kind is Kind.DENSE_INTEGER)
    columns = len(job.raw.categorical)
    at_once = min(threads(), columns)
    limit = job.memory.divided(at_once).merged_ids

    def fill(made: Path) -> dict[str, Any]:
        file = StagedFile(staged)
        cut = made / "cut"
        cut.mkdir()

        def one(column: int) -> tuple[int, int]:
            runs, missing = _runs(file, column, rows, cut)
            write_run(made, column, merged(runs, limit=limit))
            return missing

        note: dict[str, Any] = {"missing": []}
        with ThreadPoolExecutor(at_once) as pool:
            for position, missing in enumerate(pool.map(one, range(columns)), start=1):
                note["missing"].append(missing)
                advance(0, rows * position // columns)
        shutil.rmtree(cut)
        return note | {"minimum": _minimum(file, rows, integers)}

    counted = step(job.work / f"counted-{key_of(LAYOUT, staged.name, rows, integers)}", fill)
    advance(0, rows)
    return counted


def _minimum(file: StagedFile, rows: int, integers: tuple[int, ...]) -> int | None:
    """Smallest dense integer of the leading rows; None without a column of integers."""
    found = []
    for block, inside in file.blocks_before(rows) if integers else ():
        if inside == block.rows:
            found.append(block.minimum)
        else:
            found += [int(file.dense(column, block)[:inside].min()) for column in integers]
    return min(found, default=None)


def _runs(file: StagedFile, column: int, rows: int, cut: Path) -> tuple[list[Run], tuple[int, int]]:
    """The dictionaries of a column in the leading rows; the rows without an id, and the first of them.

    That of a block of which a part trains is written anew, into the folder `cut`.
    """
    runs: list[Run] = []
    missing = missing_first = 0
    for block, inside in file.blocks_before(rows):
        run, place = file.dictionary(column, block), block.ids[column]
        lost = place.missing
        if inside < block.rows:
            counts = np.bincount(file.codes(column, block)[:inside], minlength=place.distinct + 1)
            kept, lost = np.flatnonzero(counts[:-1]), int(counts[-1])
            ids = run.read(0, place.distinct)
            write_run(cut, column, [Counted(ids.values[kept], counts[kept].astype(np.int64), ids.first[kept])])
            run = Run.whole(cut, column)
        runs.append(run)
        if lost and not missing:
            missing_first = block.start + place.missing_first
        missing += lost
    return runs, (missing, missing_first)
