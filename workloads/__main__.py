"""Command line: `python -m workloads` with `prepare`, `verify` or `describe`."""

import signal
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from workloads import DataError
from workloads.manifest import IdRule, Manifest, Settings
from workloads.prepare.formats import FORMATS, read_schema
from workloads.prepare.prepare import prepare
from workloads.prepare.workspace import MemoryBudget
from workloads.progress import Shown

USER_ERROR = 2
_out = Console(soft_wrap=True, markup=False, highlight=False)
_err = Console(soft_wrap=True, markup=False, highlight=False, stderr=True)


class _Commands(TyperGroup):
    """Tells an error of the user in a sentence and ends with 2."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except DataError as error:
            # names of columns come from the data: no control code of theirs reaches the terminal
            told = "".join(part if part.isprintable() else repr(part)[1:-1] for part in str(error))
            _err.print(f"error: {told}")
            raise typer.Exit(USER_ERROR) from error


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Prepare raw click logs for training, check them, and say what they look like.",
)


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


@app.command("prepare", cls=_ManyInputs)
def prepare_command(
    *,
    dataset: Annotated[
        str | None, typer.Argument(help=f"One of: {', '.join(FORMATS)}; none with --schema.", show_default=False)
    ] = None,
    inputs: Annotated[
        list[Path],
        typer.Option(
            "--input", help="Raw files in time order: text plain, gzip or zstd, or Parquet; takes several, repeatable."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory that gets a directory of the dataset's name.")],
    schema: Annotated[
        Path | None, typer.Option("--schema", help="TOML file that describes the columns of files of your own.")
    ] = None,
    ids: Annotated[
        IdRule, typer.Option(help="Ids to rows: by rank of frequency, or hashed: the id modulo the table's rows.")
    ] = IdRule.RANK,
    table_rows: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Largest size of a table of hashed ids.")
    ] = None,
    min_count: Annotated[int, typer.Option(min=1, help="Ids seen less often in training share row 0.")] = 1,
    skip_bad_rows: Annotated[int, typer.Option(min=0, help="Malformed rows that may be left out.")] = 0,
    memory: Annotated[str, typer.Option(help="Peak resident memory, of each worker with --scheduler.")] = "8GB",
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler whose workers see the same files.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier output, at the very end.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what a run cut short has finished.")] = False,
) -> None:
    """Turn the raw files of a dataset into arrays, splits and id counts; a run cut short goes on where it stopped.

    For example:

    - `python -m workloads prepare criteo_kaggle --input train.txt --out data`
    - `python -m workloads prepare criteo_1tb --input day_0.gz day_1.gz --out data`
    - `python -m workloads prepare --schema shop.toml --input a.csv --out data`

    The exit code is 0 once all is written, 2 for a wrong option or bad data.
    """
    start = time.monotonic()
    settings = Settings(min_count=min_count, skip_bad_rows=skip_bad_rows, ids=ids, table_rows=table_rows)
    if (dataset is None) == (schema is None):
        raise DataError(f"name a dataset ({', '.join(FORMATS)}) or give --schema FILE, one of the two")
    with Shown() as progress:
        manifest = prepare(
            read_schema(schema) if schema else str(dataset),
            inputs,
            out=out,
            settings=settings,
            overwrite=overwrite,
            restart=restart,
            memory=MemoryBudget.parse(memory),
            scheduler=scheduler,
            progress=progress,
        )
    _summarise(manifest, out / manifest.dataset, seconds=time.monotonic() - start)


@app.command("verify")
def verify_command(folder: Annotated[Path, typer.Argument(help="Directory that holds manifest.json.")]) -> None:
    """Compare every file of a prepared dataset with its sha256 in the manifest.

    For example: `python -m workloads verify data/criteo_kaggle`

    The exit code is 0 if all are as prepared, 2 if one is not.
    """
    from workloads.prepared import PreparedWorkload

    workload = PreparedWorkload.open(folder, batch_size=1)
    workload.verify()
    _out.print(f"{folder}: {len(workload.manifest.files)} files are as prepared")


@app.command("describe")
def describe_command(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Directory of a prepared dataset.")] = None,
    *,
    synthetic: Annotated[
        str | None, typer.Option(help="Describe this synthetic stream instead, as in criteo_kaggle; needs --rows.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    rows: Annotated[int | None, typer.Option(min=1, help="Leading rows of each split to read; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
) -> None:
    """Show rows, click rate, table sizes and skew of a dataset.

    For example:

    - `python -m workloads describe data/criteo_kaggle`
    - `python -m workloads describe --synthetic avazu@drift --rows 1000000`

    The exit code is 0, or 2 for a wrong option or bad data.
    """
    # torch, which this imports, would take 300 MB from a preparation if it were imported with the command line
    from workloads.describe import describe_rows

    describe_rows(folder, synthetic, rows=rows, seed=seed, as_json=as_json)


def _summarise(manifest: Manifest, folder: Path, *, seconds: float) -> None:
    rows = sum(split.rows for split in manifest.splits.values())
    _out.print(f"{folder}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s)")
    if len(manifest.inputs) > 1:
        _out.print(f"files taken in the order given: {', '.join(file.name for file in manifest.inputs)}")
    for name, split in manifest.splits.items():
        _out.print(f"  {name:<10} {split.rows:>13,} rows, CTR {split.ctr:.4f}")
    total = sum(table.rows for table in manifest.tables)
    smallest = "" if manifest.integer_minimum is None else f"; smallest training integer {manifest.integer_minimum}"
    _out.print(f"  {len(manifest.tables)} tables, {total:,} rows{smallest}")
    if manifest.skipped_rows:
        _out.print(f"  left out {manifest.skipped_rows} bad rows")


if __name__ == "__main__":
    # polars has put a handler of its own in the place of Python's: a Ctrl-C within one of its calls may then be raised
    # twice, or not at all. With Python's it is raised once, behind that call, or ignored where a shell says so.
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
    app()
