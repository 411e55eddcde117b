"""How fast `python -m workloads describe` goes through a prepared directory, and how much memory it takes.

    python tests/bench/describe_figures.py                   one million generated rows of Criteo Kaggle's shape
    python tests/bench/describe_figures.py --data DIR        a directory prepared before

Prints rows/s of each pass, accesses/s of the reuse distances, and the peak memory of the process, on one core. Ids are
drawn from the synthetic stream, written as raw lines and prepared; compilation is outside the clock.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_DATASET = "criteo_kaggle"
_BATCH_SIZE = 2048
_WARM_UP_ROWS = 4096


@dataclass(frozen=True)
class Pass:
    """One pass over rows: its stage, the rows, and seconds with what follows from them."""

    stage: str
    rows: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Passes in order, accesses measured for reuse (once for all tables, once for each), and bytes at the peak."""

    passes: tuple[Pass, ...]
    tables: int
    table_rows: int
    peak_bytes: int


def measure(folder: Path, *, reuse_rows: int) -> Measured:
    """Describe a directory in this process, which should be a fresh one: the peak is that of its whole life."""
    from workloads.describe.measure import describe
    from workloads.describe.rows import PreparedRows

    source = PreparedRows(folder)
    describe(source, batch_size=_BATCH_SIZE, rows=_WARM_UP_ROWS)
    ends: dict[str, tuple[int, float]] = {}
    start = time.perf_counter()
    describe(
        source,
        batch_size=_BATCH_SIZE,
        reuse_rows=reuse_rows,
        progress=lambda stage, done, _total: ends.update({stage: (done, time.perf_counter())}),
    )
    passes = []
    for stage, (rows, end) in ends.items():
        passes.append(Pass(stage, rows, end - start))
        start = end
    return Measured(
        passes=tuple(passes),
        tables=len(source.tables),
        table_rows=sum(rows for _, rows in source.tables),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def generate(folder: Path, *, rows: int) -> Path:
    """Prepare so many rows of the synthetic stream; the directory that was made."""
    import polars as pl

    from workloads.prepare.prepare import prepare
    from workloads.streams.synthetic import SyntheticWorkload

    workload = SyntheticWorkload.create(_DATASET, batch_size=1 << 16, seed=0)
    raw = folder / "train.txt"
    with raw.open("wb") as stream:
        for index in range(-(-rows // workload.batch_size)):
            batch = workload.batch(index)
            samples = min(workload.batch_size, rows - index * workload.batch_size)
            ids = batch.features.values().view(-1, workload.batch_size)[:, :samples].numpy()
            columns = [batch.labels[:samples].numpy().astype(int), *[ids[0] * 0] * workload.dense_columns, *ids]
            # Decimal digits are hexadecimal ones too, so numbers do as ids.
            frame = pl.DataFrame({str(number): column for number, column in enumerate(columns)})
            frame.write_csv(stream, separator="\t", include_header=False)
    prepare(_DATASET, [raw], out=folder)
    raw.unlink()
    return folder / _DATASET


def report(measured: Measured) -> str:
    """The figures as lines."""
    lines = [f"{measured.tables} tables, {measured.table_rows:,} rows"]
    lines += [
        f"{part.stage:<20} {part.rows:>13,} rows {part.seconds:8.2f} s {part.rows / part.seconds:>13,.0f} rows/s"
        for part in measured.passes
    ]
    reuse = measured.passes[-1]
    accesses = 2 * measured.tables * reuse.rows  # once on the shared stack, once on the table's own
    lines.append(f"{reuse.stage:<20} {accesses:>13,} accesses {accesses / reuse.seconds:>22,.0f} accesses/s")
    lines.append(f"peak memory {measured.peak_bytes / 2**20:,.0f} MiB")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a prepared directory; default: generated rows")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to generate")
    parser.add_argument("--reuse-rows", type=int, default=1_000_000, help="rows whose reuse distances are measured")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # read by the fresh process
    with (
        tempfile.TemporaryDirectory() as name,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        folder = options.data or pool.apply(generate, (Path(name),), {"rows": options.rows})
        sys.stdout.write(report(pool.apply(measure, (folder,), {"reuse_rows": options.reuse_rows})) + "\n")


if __name__ == "__main__":
    main()
