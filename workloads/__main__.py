"""Command line: `python -m workloads prepare` and `python -m workloads verify`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.core import TyperCommand

from workloads.errors import DataError
from workloads.manifest import Manifest, Settings
from workloads.prepare import prepare
from workloads.prepared import PreparedWorkload
from workloads.schema import SCHEMAS

USER_ERROR = 2
REPORT_EVERY_S = 2.0

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prepare raw click logs for training.")
_out = Console(soft_wrap=True, markup=False, highlight=False)
_err = Console(soft_wrap=True, markup=False, highlight=False, stderr=True)


class _ManyInputs(TyperCommand):
    """Lets one --input take several files, as a shell's wildcard gives them."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        spread: list[str] = []
        taking = False
        for word in args:
            if taking and not word.startswith("-"):
                spread += ["--input", word]
            else:
                taking = word == "--input"
                spread += [] if taking else [word]
        return super().parse_args(ctx, spread)


class _Progress:
    """Rows and rows per second, now and then."""

    def __init__(self) -> None:
        self.stage = ""
        self._start = self._shown = time.monotonic()

    def __call__(self, stage: str, rows: int) -> None:
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self._start, self._shown = stage, now, now
        elif now - self._shown >= REPORT_EVERY_S:
            self._shown = now
            _err.print(f"{stage}: {rows:,} rows, {rows / (now - self._start):,.0f} rows/s")


@app.command("prepare", cls=_ManyInputs)
def prepare_command(
    *,
    dataset: Annotated[str, typer.Argument(help=f"One of: {', '.join(SCHEMAS)}.")],
    inputs: Annotated[
        list[Path],
        typer.Option("--input", help="Raw files in time order, plain, gzip or zstd; takes several, may be repeated."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory that gets a directory of the dataset's name.")],
    min_count: Annotated[int, typer.Option(help="Ids seen less often in training share row 0.")] = 1,
    skip_bad_rows: Annotated[int, typer.Option(help="Malformed rows that may be left out.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier output, at the very end.")] = False,
) -> None:
    """Turn the raw files of a dataset into arrays, splits and id counts."""
    start = time.monotonic()
    settings = Settings(min_count=min_count, skip_bad_rows=skip_bad_rows)
    try:
        manifest = prepare(dataset, inputs, out=out, settings=settings, overwrite=overwrite, progress=_Progress())
    except DataError as error:
        raise _failed(error) from error
    _summarise(manifest, out / dataset, seconds=time.monotonic() - start)


@app.command("verify")
def verify_command(folder: Annotated[Path, typer.Argument(help="Directory that holds manifest.json.")]) -> None:
    """Compare every file of a prepared dataset with its sha256 in the manifest."""
    try:
        workload = PreparedWorkload.open(folder, batch_size=1)
        workload.verify()
    except DataError as error:
        raise _failed(error) from error
    _out.print(f"{folder}: {len(workload.manifest.files)} files are as prepared")


def _summarise(manifest: Manifest, folder: Path, *, seconds: float) -> None:
    rows = sum(split.rows for split in manifest.splits.values())
    _out.print(f"{folder}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s)")
    if len(manifest.inputs) > 1:
        _out.print(f"files taken in the order given: {', '.join(file.name for file in manifest.inputs)}")
    for name, split in manifest.splits.items():
        _out.print(f"  {name:<10} {split.rows:>13,} rows, CTR {split.ctr:.4f}")
    total = sum(table.rows for table in manifest.tables)
    _out.print(f"  {len(manifest.tables)} tables, {total:,} rows; smallest training integer {manifest.integer_minimum}")
    if manifest.skipped_rows:
        _out.print(f"  left out {manifest.skipped_rows} bad rows")


def _failed(error: DataError) -> typer.Exit:
    _err.print(f"error: {error}")
    return typer.Exit(USER_ERROR)


if __name__ == "__main__":
    app()
