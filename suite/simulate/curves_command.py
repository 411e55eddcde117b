"""Command line: `python -m suite curves`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from suite.cli import ScaleName
from suite.environment import capture
from suite.plan import BadOption
from suite.scales import SCALES
from suite.simulate.curves import miss_curves
from suite.simulate.curves_tables import frames, show, to_json
from suite.simulate.model import Span
from suite.simulate.options import open_trace
from suite.simulate.split import split_slots
from suite.simulate.trace import Trace
from suite.store import StoreError, write_atomically

WARMUP_BATCHES = 50
COUNTED_BATCHES = 100
_USAGE = 2
_INTERRUPTED = 130
_LINE_EVERY_S = 10.0


def curves_command(
    *,
    workload: Annotated[
        str, typer.Option(help="A synthetic stream, as in criteo_kaggle@drift, or one that --data-dir holds")
    ] = "criteo_kaggle",
    scale: Annotated[
        ScaleName, typer.Option(help="Table sizes of synthetic streams; batch size by default")
    ] = ScaleName.FULL,
    data_dir: Annotated[
        Path | None, typer.Option(help="Follow a dataset made by `python -m workloads prepare`")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Follow ids of your own: .npy, .npz or .parquet, instead of a workload")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per batch; default: the scale's")] = None,
    seed: Annotated[int, typer.Option(help="Of synthetic streams")] = 0,
    batches: Annotated[
        int | None, typer.Option(help=f"Batches to count; default: {COUNTED_BATCHES}, fewer on a short stream")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help=f"Batches to follow before; default: {WARMUP_BATCHES}, fewer on a short stream")
    ] = None,
    sample: Annotated[
        float | None, typer.Option(help="Follow this share of the rows, as in 0.01, and estimate; default: all, exact")
    ] = None,
    per_table: Annotated[bool, typer.Option("--per-table", help="A curve of each table as well")] = False,
    split: Annotated[
        str | None, typer.Option(help="Divide so many slots, or such a share of the rows (0.01), among the tables")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory that gets JSON, CSV and figures")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress")] = False,
) -> None:
    """Misses of an LRU cache at every size at once, and how to divide slots among tables.

    One pass over the stream gives all sizes exactly, from the largest batch on. With --split, the slots go where they
    save most misses, and one cache for all tables and equal shares of the rows stand beside that.

    Examples: `python -m suite curves --scale small --per-table`; `python -m suite curves --split 0.01 --out curves/`;
    `python -m suite curves --workload criteo_1tb --sample 0.01`.

    The exit code is 2 for a wrong option or bad data, 130 after Ctrl-C.
    """
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        _check(batches=batches, warmup=warmup, out=out)
        opened = open_trace(
            workload=workload, scale=scale.value, data_dir=data_dir, trace=trace, batch_size=batch_size, seed=seed
        )
        slots = None if split is None else parse_slots(split, rows=opened.rows)
        span = _span(opened, batches=batches, warmup=warmup)
        with _Shown(quiet=quiet) as progress:
            curves = miss_curves(opened, span, sample, per_table or slots is not None, progress)
        divided = None if slots is None else split_slots(curves, slots)
    except ValueError as error:
        # every error of options, names and data is a ValueError with a sentence for the user
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(_USAGE) from None
    except KeyboardInterrupt:
        errors.print("interrupted: no curve was finished", style="yellow")
        raise typer.Exit(_INTERRUPTED) from None
    stream = {
        "trace_file": None if trace is None else str(trace),
        "data_dir": None if data_dir is None else str(data_dir),
        "scale": scale.value,
        "batch_size": SCALES[scale].batch_size if batch_size is None else batch_size,
        "seed": seed,
    }
    environment = capture(threads=len(os.sched_getaffinity(0))).model_dump(mode="json")
    record = to_json(curves, divided, stream=stream, environment=environment)
    if as_json:
        typer.echo(record, nl=False)
    else:
        show(curves, divided, Console(markup=False, highlight=False))
    if out is None:
        return
    from suite.simulate.curves_figures import draw

    try:
        files = [out / "curves.json"]
        write_atomically(files[0], record)
        for name, frame in frames(curves, divided).items():
            files.append(out / f"{name}.csv")
            write_atomically(files[-1], frame.to_csv(index=False, lineterminator="\n"))
        files += draw(curves, divided, out)
    except (StoreError, OSError) as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(1) from None
    errors.print(f"Wrote {', '.join(path.name for path in files)} to {out}")


def parse_slots(text: str, *, rows: int) -> int:
    """Slots of `338000`, or of a share of the rows, `0.01`.

    Raises:
        BadOption: it is neither, or out of range.
    """
    try:
        number = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        raise BadOption(f"--split: '{text}' is no number: write slots, as in 338000, or a share, as in 0.01") from None
    if isinstance(number, int):
        if not 1 <= number <= rows:
            raise BadOption(f"--split: {number:,} slots are out of range, it must be 1 to the {rows:,} rows")
        return number
    if not 0 < number <= 1:  # NaN compares false with everything
        raise BadOption(f"--split: {text} is out of range, a share of the rows is above 0 and at most 1")
    return max(1, int(rows * number))


def _check(*, batches: int | None, warmup: int | None, out: Path | None) -> None:
    if batches is not None and batches < 1:
        raise BadOption(f"--batches: {batches} is out of range, it must be at least 1")
    if warmup is not None and warmup < 0:
        raise BadOption(f"--warmup: {warmup} is out of range, it must be at least 0")
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"--out: cannot make {out}: {error.strerror or error}") from None
    if not os.access(out, os.W_OK):
        raise BadOption(f"--out: {out} cannot be written: choose another directory")


def _span(trace: Trace, *, batches: int | None, warmup: int | None) -> Span:
    """What to follow of a trace; defaults shrink to what it has."""
    if not trace.length:
        raise BadOption(f"--batch-size: {trace.name} has not one full batch: give a smaller one")
    before = min(WARMUP_BATCHES, trace.length // 3) if warmup is None else warmup
    left = trace.length - before
    if left < 1:
        raise BadOption(f"--warmup: {trace.name} has {trace.length} batches, none is left to count after {before}")
    counted = min(COUNTED_BATCHES, left) if batches is None else batches
    if counted > left:
        raise BadOption(
            f"--batches: {trace.name} has {trace.length} batches, {left} after a warm-up of {before}, not {counted}"
        )
    return Span(counted_from=before, stop=before + counted)


class _Shown:
    """Shows progress on standard error: a bar in a terminal, else a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        columns = (
            TextColumn("batches"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        hidden = quiet or not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", rate="", total=None)
        self._start = self._line = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        rate = done / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=done, total=total, rate=f"{rate:,.1f} batches/s")
        if self._bar.disable and not self._quiet and now - self._line >= _LINE_EVERY_S:
            self._line = now
            left = f"{(total - done) / rate:,.0f} s left"
            self._console.print(f"{done:,} of {total:,} batches, {rate:,.1f} batches/s, {left}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
