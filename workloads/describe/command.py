"""Command line: `python -m workloads describe`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from workloads.errors import DataError
from workloads.progress import Shown

if TYPE_CHECKING:
    from workloads.describe.dataset import RowSource

BATCH_SIZE = 2048
USER_ERROR = 2


def describe_command(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Directory of a prepared dataset.")] = None,
    *,
    synthetic: Annotated[
        str | None, typer.Option(help="Describe this synthetic stream instead, as in criteo_kaggle; needs --rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory that gets JSON, CSV and a figure.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch of the working sets.")] = BATCH_SIZE,
    rows: Annotated[int | None, typer.Option(help="Leading rows of each split to read; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
) -> None:
    """Show rows, click rate, table sizes, skew and working sets of a dataset.

    For example:

    - `python -m workloads describe data/criteo_kaggle`
    - `python -m workloads describe --synthetic avazu@drift --rows 1000000`

    The exit code is 0, or 2 for a wrong option or bad data.
    """
    # torch, which these import, would take 300 MB from a preparation if it were imported with the command line
    from workloads.describe.files import check_output, write
    from workloads.describe.measure import describe
    from workloads.describe.tables import show

    try:
        source = _source(folder, synthetic, batch_size=batch_size, rows=rows, seed=seed)
        if out is not None:
            check_output(out)
        with Shown() as shown:
            description = describe(
                source,
                batch_size=batch_size,
                rows=rows,
                progress=lambda stage, done, total: shown(stage, done, total, done),
            )
        console = Console(markup=False, highlight=False)
        show(description, console)
        if out is not None:
            files = write(description, out)
            console.print(f"\nWrote {len(files)} files to {out}", soft_wrap=True)
    except DataError as error:
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"error: {error}")
        raise typer.Exit(USER_ERROR) from error


def _source(folder: Path | None, synthetic: str | None, *, batch_size: int, rows: int | None, seed: int) -> "RowSource":
    from workloads.describe.dataset import prepared_rows, synthetic_rows

    if (folder is None) == (synthetic is None):
        raise DataError("name a prepared directory, or a stream with --synthetic NAME: one of the two")
    if folder is not None:
        return prepared_rows(folder)
    if rows is None:
        raise DataError(f"--synthetic {synthetic} needs --rows: a whole epoch is long, as in --rows 1000000")
    return synthetic_rows(str(synthetic), batch_size=batch_size, seed=seed)
