"""Options that the commands which replay streams share, and the stream that these name."""

import os
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer
from pydantic import ValidationError

from suite.records.command_line import BadOption, parse_prepared, parse_shares, parse_workloads
from suite.records.measured import Model
from suite.records.scales import SCALES
from suite.simulate.models.model import Span
from suite.simulate.trace import FileTrace, Trace, WorkloadTrace
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.streams.synthetic import SyntheticWorkload

_M = TypeVar("_M", bound=Model)

WARMUP_BATCHES = 50
COUNTED_BATCHES = 100
RATIO_POINTS = 9
"""Sizes of a range of cache ratios."""

WorkloadOption = Annotated[
    str, typer.Option(help="A synthetic stream, as in criteo_kaggle@drift, or one that --data-dir holds")
]
DataDirOption = Annotated[Path | None, typer.Option(help="Replay a dataset made by `python -m workloads prepare`")]
TraceOption = Annotated[Path | None, typer.Option(help="Replay ids of your own, .npy or .npz, instead of a workload")]
BatchSizeOption = Annotated[int | None, typer.Option(min=1, help="Samples per batch; default: the scale's")]
SeedOption = Annotated[int, typer.Option(help="Of synthetic streams")]
BatchesOption = Annotated[
    int | None, typer.Option(min=1, help=f"Batches to count; default: {COUNTED_BATCHES}, fewer on a short stream")
]
WarmupOption = Annotated[
    int | None,
    typer.Option(min=0, help=f"Batches to replay before; default: {WARMUP_BATCHES}, fewer on a short stream"),
]
OutOption = Annotated[Path | None, typer.Option(help="Directory that gets the results as files")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables")]


def open_trace(
    *,
    workload: str,
    scale: str,
    data_dir: Path | None = None,
    trace: Path | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    frequency_prefix: float = 1.0,
) -> Trace:
    """The training stream of a workload, synthetic or prepared, or a trace file, as the options of these names say.

    The scale gives table sizes of synthetic streams, and the batch size unless that is given. Prepared rows have one
    order, that of time, whatever the seed. `frequency_prefix` is the share of the training split that a system may take
    frequencies from.

    Raises:
        BadOption: an option cannot be.
        DataError: prepared data or a trace file are damaged.
    """
    samples = SCALES[scale].batch_size if batch_size is None else batch_size
    if not 0 < frequency_prefix <= 1:
        raise BadOption(f"--frequency-prefix: {frequency_prefix} is out of range, it must be above 0 and at most 1")
    if trace is not None:
        if data_dir is not None:
            raise BadOption("--trace and --data-dir exclude each other: give the one to replay")
        return FileTrace(trace, batch_size=samples, prefix=frequency_prefix)
    name = one_workload(workload, data_dir)
    if data_dir is not None:
        opened = PreparedWorkload.open(find_prepared(data_dir)[name], batch_size=samples)
        return WorkloadTrace(opened, prefix=frequency_prefix)
    made = SyntheticWorkload.create(name, batch_size=samples, seed=seed, max_rows=SCALES[scale].max_rows)
    return WorkloadTrace(made, prefix=frequency_prefix)


def one_workload(text: str, data_dir: Path | None) -> str:
    """The one workload that `--workload` names, synthetic or prepared. Raises `BadOption`: it names none or several."""
    if data_dir is None:
        names = parse_workloads(text, flag="--workload")
    else:
        names = parse_prepared(text, find_prepared(data_dir), data_dir=data_dir, flag="--workload")
    if len(names) > 1:
        raise BadOption(f"--workload: give one of {', '.join(names)}")
    return names[0]


def span_of(trace: Trace, *, batches: int | None, warmup: int | None, epoch: bool = False) -> Span:
    """The batches of a trace to replay; defaults shrink to what it has. Raises `BadOption`: it has no such span."""
    if epoch and batches is not None:
        raise BadOption("--epoch and --batches exclude each other")
    if not trace.length:
        raise BadOption(f"--batch-size: {trace.name} has not one full batch: give a smaller one")
    before = min(WARMUP_BATCHES, trace.length // 3) if warmup is None else warmup
    if before >= trace.length:
        raise BadOption(f"--warmup: {trace.name} has {trace.length} batches, none is left to count after {before}")
    left = trace.length - before
    counted = left if epoch else min(COUNTED_BATCHES, left) if batches is None else batches
    if counted > left:
        raise BadOption(
            f"--batches: {trace.name} has {trace.length} batches, {left} after a warm-up of {before}, not {counted}"
        )
    return Span(counted_from=before, stop=before + counted)


def parse_ratios(text: str, *, points: int) -> tuple[float, ...]:
    """Cache ratios of `0.01`, `0.01,0.05` or `0.001:0.5`, ascending, each once.

    Args:
        text: The option.
        points: Of a range, whose ratios lie evenly on a logarithmic scale; rounded to three digits.

    Raises:
        BadOption: a ratio is no number or outside (0, 1], or the range is none.
    """
    ratios = parse_shares(text.replace(":", ","), flag="--cache-ratio")
    if ":" not in text:
        return tuple(sorted(set(ratios)))
    if len(ratios) != 2 or ratios[0] >= ratios[1]:
        raise BadOption(f"--cache-ratio: '{text}' is no range: write the smaller ratio first, as in 0.001:0.5")
    between = [float(f"{ratio:.3g}") for ratio in np.geomspace(ratios[0], ratios[1], points)[1:-1]]
    return tuple(sorted({*ratios, *between}))


def slots_of(rows: int, ratio: float) -> int:
    """Slots of a cache that holds a share of all rows, as the systems round it."""
    return max(1, int(rows * ratio))


def parse_slots(text: str, *, rows: int) -> int:
    """Slots of `338000`, or of a share of the rows, `0.01`.

    Raises:
        BadOption: it is neither.
    """
    try:
        number = int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= (rows if isinstance(number, int) else 1):  # NaN compares false with everything
        raise BadOption(
            f"--split: '{text}' is neither slots, 1 to the {rows:,} rows, nor a share of the rows, above 0 up to 1"
        )
    return number if isinstance(number, int) else max(1, int(rows * number))


def check_output(out: Path, *, flag: str = "--out") -> None:
    """Make the directory before a long replay whose results go there. Raises `BadOption`: they could not be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"{flag}: cannot make {out} ({error.strerror or error}): choose another directory") from None
    if not os.access(out, os.W_OK):
        raise BadOption(f"{flag}: {out} cannot be written: choose another directory")


def read_input(kind: type[_M], path: Path, *, flag: str = "", remedy: str) -> _M:
    """A file of JSON that an option or a call names. Raises `BadOption`: there is none, or it holds something else."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        reason = error.strerror or str(error)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    raise BadOption(f"{flag}{path}: {reason}: {remedy}")
