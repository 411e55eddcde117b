"""Figures of `python -m workloads prepare`: rows per second and peak memory, on raw files made on the spot.

    python tests/bench/prepare_figures.py criteo_kaggle --rows 3000000
    python tests/bench/prepare_figures.py avazu --rows 3000000 --gzip
    python tests/bench/prepare_figures.py criteo_kaggle --rows 40000000 --memory 1GB --cap

The ids follow a power law over the published table sizes, nothing repeats but ids, and a tenth of the fields is empty.
With `--cap` the child is killed once its resident memory exceeds `--memory`, looked at a hundred times a second.
"""

from __future__ import annotations

import gzip
import multiprocessing
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import psutil
import typer

from workloads.manifest import IdRule, Settings
from workloads.prepare.columns import FORMATS, Kind, RawFormat
from workloads.prepare.memory_bound import Memory

BLOCK_ROWS = 200_000
MISSING = 0.1
SKEW = 3.0  # ids are rows * u ** SKEW with u even on [0, 1): the hottest tenth takes about half of the accesses


def block_of(raw: RawFormat, rows: int, generator: np.random.Generator) -> pl.DataFrame:
    """Rows as text columns, in file order."""
    columns: dict[str, pl.Series] = {}
    for column in raw.columns:
        if column.kind is Kind.LABEL:
            values = pl.Series(generator.integers(0, 2, rows).astype(np.uint8))
        elif column.kind is Kind.IGNORED:
            values = pl.Series(np.full(rows, 14102100))
        elif column.kind.dense:
            values = pl.Series(generator.geometric(0.02, rows) - 2)
        else:
            size = column.rows or 1
            ids = (size * generator.random(rows) ** SKEW).astype(np.uint64)
            # an odd factor modulo 2^32: a name of 8 hex digits for each id, in no order
            values = pl.Series(ids if column.kind is Kind.CATEGORICAL_INTEGER else ids * np.uint64(2654435761) % 2**32)
        empty = column.kind.dense or column.kind is Kind.CATEGORICAL_HEX
        text = _hex(values) if column.kind is Kind.CATEGORICAL_HEX else values.cast(pl.String)
        missing = pl.Series(generator.random(rows) < MISSING) if empty and raw.separator == b"\t" else None
        columns[column.name] = text if missing is None else text.set(missing, "")
    return pl.DataFrame(columns)


def _hex(values: pl.Series) -> pl.Series:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(28, -4, -4, dtype=np.uint64)
    text = digits[(values.to_numpy()[:, None] >> shifts) & np.uint64(15)]
    return pl.Series(np.ascontiguousarray(text).view("S8").ravel().astype(str))


def write_raw(raw: RawFormat, path: Path, rows: int, *, seed: int, packed: bool) -> None:
    """Write a raw file of a dataset."""
    generator = np.random.default_rng(seed)
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as stream:
        if raw.header:
            stream.write(raw.separator.join(column.name.encode() for column in raw.columns) + b"\n")
        for start in range(0, rows, BLOCK_ROWS):
            frame = block_of(raw, min(BLOCK_ROWS, rows - start), generator)
            text = frame.write_csv(include_header=False, separator=raw.separator.decode(), quote_style="never")
            stream.write(text.encode())


def child(arguments: dict[str, Any], result: Any) -> None:
    """Prepare in this process and send seconds, those of each step (clock, all cores), and peak memory."""
    from workloads.prepare.prepare import Report, prepare

    started = peak_bytes()
    begins: dict[str, tuple[float, float]] = {}
    peaks: list[int] = []

    def listen(report: Report) -> None:
        if report.step not in begins:
            peaks.append(peak_bytes())
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            begins[report.step] = (time.monotonic(), time.process_time())

    start = time.monotonic()
    prepare(**arguments, progress=listen)
    times = [*begins.values(), (time.monotonic(), time.process_time())]
    peaks.append(peak_bytes())
    steps = {
        step: (later[0] - at[0], later[1] - at[1], peak)
        for (step, at), later, peak in zip(begins.items(), times[1:], peaks[1:], strict=True)
    }
    result.send((times[-1][0] - start, steps, started, max(peaks)))


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main(
    dataset: str,
    *,
    rows: int = 3_000_000,
    files: int = 1,
    memory: str = "8GB",
    cap: bool = False,
    packed: Annotated[bool, typer.Option("--gzip")] = False,
    ids: IdRule = IdRule.RANK,
    folder: Annotated[Path | None, typer.Option(help="Where to write; a temporary directory by default.")] = None,
) -> None:
    """Make raw files, prepare them in a child process, and print its figures."""
    raw = FORMATS[dataset]
    work = Path(tempfile.mkdtemp(prefix="prepare-figures-", dir=folder))
    try:
        paths = [work / f"day_{number}" for number in range(files)]
        for number, path in enumerate(paths):
            write_raw(raw, path, rows // files, seed=number, packed=packed)
        read = sum(path.stat().st_size for path in paths)
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe(duplex=False)
        arguments = {
            "dataset": dataset,
            "inputs": paths,
            "out": work / "out",
            "settings": Settings(ids=ids),
            "memory": Memory.parse(memory),
        }
        process = context.Process(target=child, args=(arguments, send))
        process.start()
        send.close()
        while not receive.poll(0.01):
            if cap and psutil.Process(process.pid).memory_info().rss > Memory.parse(memory).bytes:
                process.kill()
                process.join()
                raise typer.BadParameter(f"the child needed more than {memory}")
        seconds, steps, started, peak = receive.recv()
        process.join()
        written = sum(path.stat().st_size for path in (work / "out").rglob("*") if path.is_file())
        _print(f"{dataset}, {rows:,} rows in {files} files, {read / 1e9:.2f} GB read, {written / 1e9:.2f} GB written")
        _print(f"{rows / seconds:,.0f} rows/s ({seconds:.1f} s), --memory {memory}{', capped' if cap else ''}")
        _print(f"peak resident {peak / 1e9:.2f} GB, of which {started / 1e9:.2f} GB before the first row")
        for step, (wall, cores, most) in steps.items():
            speed = f"{wall:8.1f} s  {rows / wall:>12,.0f} rows/s"
            _print(f"  {step:<10} {speed}  {cores:8.1f} s of all cores  {most / 1e9:6.2f} GB")
        _print(f"  {sum(cores for _, cores, _ in steps.values()):.1f} s of all cores together")
    finally:
        shutil.rmtree(work)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    typer.run(main)
