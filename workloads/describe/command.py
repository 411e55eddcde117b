"""Command line: `python -m workloads describe`."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from workloads.describe.files import check_output, write
from workloads.describe.measure import REUSE_ROWS, describe
from workloads.describe.rows import PreparedRows, RowSource, SyntheticRows
from workloads.describe.tables import show
from workloads.errors import DataError

BATCH_SIZE = 2048
USER_ERROR = 2
LINE_EVERY_S = 10.0


def describe_command(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Directory of a prepared dataset.")] = None,
    *,
    synthetic: Annotated[
        str | None, typer.Option(help="Describe this synthetic stream instead, as in criteo_kaggle; needs --rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory that gets JSON, CSV and figures.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch of the working sets.")] = BATCH_SIZE,
    rows: Annotated[int | None, typer.Option(help="Leading rows of each split to read; default: all.")] = None,
    reuse_rows: Annotated[
        int, typer.Option(help="Leading training rows whose reuse distances are measured.")
    ] = REUSE_ROWS,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
) -> None:
    """Show rows, click rate, table sizes, skew, working sets and reuse distances of a dataset.

    For example:

    - `python -m workloads describe data/criteo_kaggle`
    - `python -m workloads describe --synthetic avazu@drift --rows 1000000`

    The exit code is 0, or 2 for a wrong option or bad data.
    """
    try:
        source = _source(folder, synthetic, batch_size=batch_size, rows=rows, seed=seed)
        if out is not None:
            check_output(out)
        with _Shown() as progress:
            description = describe(source, batch_size=batch_size, rows=rows, reuse_rows=reuse_rows, progress=progress)
        console = Console(markup=False, highlight=False)
        show(description, console)
        if out is not None:
            files = write(description, out)
            console.print(f"\nWrote {len(files)} files to {out}", soft_wrap=True)
    except DataError as error:
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"error: {error}")
        raise typer.Exit(USER_ERROR) from error


def _source(folder: Path | None, synthetic: str | None, *, batch_size: int, rows: int | None, seed: int) -> RowSource:
    if (folder is None) == (synthetic is None):
        raise DataError("name a prepared directory, or a stream with --synthetic NAME: one of the two")
    if folder is not None:
        return PreparedRows(folder)
    if rows is None:
        raise DataError(f"--synthetic {synthetic} needs --rows: a whole epoch is long, as in --rows 1000000")
    return SyntheticRows(str(synthetic), batch_size=batch_size, seed=seed)


class _Shown:
    """Shows progress on standard error: a bar in a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", rate="", total=None)
        self._stage = ""
        self._start = self._line = self._latest = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            # Told after its first block: the stage began when the one before it ended.
            self._stage, self._start, self._line = stage, self._latest, now
            self._bar.reset(self._task, description=stage, total=total, rate="")
        self._latest = now
        rate = done / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=done, rate=f"{rate:,.0f} rows/s")
        if self._bar.disable and now - self._line >= LINE_EVERY_S:
            self._line = now
            left = f"{(total - done) / rate:,.0f} s left"
            self._console.print(f"{stage}: {done:,} of {total:,} rows, {rate:,.0f} rows/s, {left}", soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
