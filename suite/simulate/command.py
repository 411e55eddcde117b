"""Command line: `python -m suite simulate`, policies times cache sizes, several in one pass over the stream."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from suite.records.command_line import FAILED, INTERRUPTED, BadOption, ScaleName, ShownConsole, errors_told
from suite.records.environment import capture
from suite.records.scales import SCALES
from suite.simulate import options, results
from suite.simulate.models.model import CannotReplay, Replay, RowBytes, Setting, Span
from suite.simulate.models.registry import build, load, parse_policies
from suite.simulate.results import LeastTraffic, Outcome, SimulatedRow, SimulatedTraffic
from suite.simulate.trace import Trace, replayed
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import Variant
from workloads import DataError
from workloads.progress import Shown

MEMORY_BYTES, ROW_BYTES = 4_000_000_000, 20
"""Host bytes for the replays of one pass, and about as many per row and replay; caches of most rows take more."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """One policy at one cache size."""

    policy: Variant
    slots: int


def simulate_command(
    *,
    workload: options.WorkloadOption = "criteo_kaggle",
    scale: Annotated[
        ScaleName, typer.Option(help="Table sizes of synthetic streams; batch size, ratio and dim by default")
    ] = ScaleName.FULL,
    data_dir: options.DataDirOption = None,
    trace: options.TraceOption = None,
    batch_size: options.BatchSizeOption = None,
    seed: options.SeedOption = 0,
    policies: Annotated[str, typer.Option(help="all, or names, with variants: freq_cache[policy=lru],uvm")] = "all",
    cache_ratio: Annotated[
        str | None,
        typer.Option(help="Cached share of all rows: 0.01, or 0.01,0.05, or 0.001:0.5; default: the scale's"),
    ] = None,
    points: Annotated[
        int, typer.Option(min=2, help="Sizes from one end of --cache-ratio A:B to the other")
    ] = options.RATIO_POINTS,
    batches: options.BatchesOption = None,
    epoch: Annotated[bool, typer.Option("--epoch", help="Count all batches behind the warm-up")] = False,
    warmup: options.WarmupOption = None,
    frequency_prefix: Annotated[
        float, typer.Option(help="Share of the training split that policies are given row frequencies of")
    ] = 0.1,
    optimizer: Annotated[
        OptimizerKind,
        typer.Option(metavar="<name>", help=f"Whose state moves with a row: {', '.join(OptimizerKind)}"),
    ] = OptimizerKind.SGD,
    embedding_dim: Annotated[int | None, typer.Option(help="Width of every row; default: the scale's")] = None,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Replay a stream of ids through caches: what each policy misses and moves, and the least that one could.

    No weights, no training: counters equal those of a trained system, at a hundred times the speed. The default
    warm-up leaves large caches that start empty not full yet: give --warmup, or --epoch, where that matters.

    For example:

    - `python -m suite simulate --scale small`
    - `python -m suite simulate --workload avazu@drift --policies freq_cache[policy=lfu],lru,fae
      --cache-ratio 0.001:0.5 --out curves/`
    - `python -m suite simulate --trace ids.npy --batch-size 4096 --cache-ratio 0.05 --epoch`

    The exit code is 0 if all was replayed, 1 if a policy failed, 2 for a wrong option or bad data, 130 after Ctrl-C.
    """
    with errors_told() as errors:
        variants = parse_policies(policies)
        usual = str(SCALES[scale].cache_ratio)
        ratios = options.parse_ratios(usual if cache_ratio is None else cache_ratio, points=points)
        dim = SCALES[scale].embedding_dim if embedding_dim is None else embedding_dim
        if dim < 4 or dim % 4:
            raise BadOption(f"--embedding-dim: {dim} is out of range, it must be a multiple of 4, from 4 on")
        row = RowBytes(weights=4 * dim, optimizer=SparseOptimizer(kind=optimizer, lr=0.0), dim=dim)
        if out is not None:
            options.check_output(out)
        opened = options.open_trace(
            workload=workload,
            scale=scale.value,
            data_dir=data_dir,
            trace=trace,
            batch_size=batch_size,
            seed=seed,
            frequency_prefix=frequency_prefix,
        )
        span = options.span_of(opened, batches=batches, warmup=warmup, epoch=epoch)
        slots = [(ratio, options.slots_of(opened.rows, ratio)) for ratio in ratios]
        cells = [(SimulatedCell(policy=policy, slots=many), ratio) for ratio, many in slots for policy in variants]
        with Shown() as shown:
            wanted = [cell for cell, _ in cells]
            found, complete = _replayed(wanted, opened, span=span, row=row, shown=shown)
        simulation = results.Simulation(
            stream=results.Stream(
                name=opened.name,
                workload=None if trace is not None else workload,
                trace_file=None if trace is None else str(trace),
                data_dir=None if data_dir is None else str(data_dir),
                scale=scale.value,
                batch_size=opened.batch_size,
                seed=seed,
                frequency_prefix=frequency_prefix,
                tables=dict(opened.tables),
                rows=opened.rows,
                batches=opened.length,
            ),
            configuration=results.Configuration(
                policies=tuple(map(str, variants)),
                cache_ratios=ratios,
                warmup_batches=span.counted_from,
                counted_batches=span.stop - span.counted_from,
                optimizer=optimizer.value,
                embedding_dim=row.dim,
            ),
            environment=capture(threads=len(os.sched_getaffinity(0))),
            complete=complete,
            rows=tuple(
                row_of(cell, ratio=ratio, rows=opened.rows, found=found) for cell, ratio in cells if cell in found
            ),
        )
        if as_json:
            typer.echo(simulation.model_dump_json())
        else:
            results.show(simulation, ShownConsole(markup=False, highlight=False))
        if out is not None:
            files = results.write(simulation, out)
            errors.print(f"Wrote {', '.join(path.name for path in files)} to {out}")
    if not complete:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(FAILED if any(row.status == "failed" for row in simulation.rows) else 0)


def _replayed(
    cells: Sequence[SimulatedCell], trace: Trace, *, span: Span, row: RowBytes, shown: Shown
) -> tuple[dict[SimulatedCell, Outcome], bool]:
    """Outcomes of cells and of the optimum with as many slots as each has, and whether all were replayed."""
    found: dict[SimulatedCell, Outcome] = {}
    run = partial(run_cells, trace=trace, span=span, row=row, shown=shown)
    # The optimum goes first: if the run is cut short, what is there can be compared with it.
    optima = [SimulatedCell(policy=Variant("belady"), slots=cell.slots) for cell in cells]
    try:
        found.update(run(list(dict.fromkeys([*optima, *cells]))))
        bounds = dict.fromkeys(bound_of(cell, outcome, trace.rows) for cell, outcome in found.items())
        found.update(run([cell for cell in bounds if cell is not None and cell not in found]))
    except KeyboardInterrupt:
        return found, False
    return found, True


def run_cells(
    cells: Sequence[SimulatedCell],
    *,
    trace: Trace,
    span: Span,
    row: RowBytes,
    shown: Callable[[str, int, int], None],
) -> Iterator[tuple[SimulatedCell, Outcome]]:
    """Replay cells, as many in one pass over the stream as take `MEMORY_BYTES`, and give each with its outcome.

    `shown` is told what has been replayed: batches of all cells, how many, and of how many.

    Raises:
        DataError: the stream is damaged.
    """
    at_once = max(1, MEMORY_BYTES // (ROW_BYTES * trace.rows))
    for first in range(0, len(cells), at_once):
        some, outcomes = cells[first : first + at_once], dict[SimulatedCell, Outcome]()
        replays: dict[SimulatedCell, Replay] = {}
        for cell in some:
            with _refusals(cell, outcomes):
                replays[cell] = Replay(build(cell.policy, Setting(trace=trace, span=span, slots=cell.slots)))
        for batch in replayed(trace, 0, span.stop):
            for cell in [cell for cell in replays if cell not in outcomes]:
                with _refusals(cell, outcomes):
                    replays[cell].take(batch)
            done = first * span.stop + len(some) * (batch.number + 1)
            shown(f"batches of {len(cells)} replays", done, len(cells) * span.stop)
        for cell in [cell for cell in replays if cell not in outcomes]:
            with _refusals(cell, outcomes):
                outcomes[cell] = _outcome(replays[cell], row)
        yield from outcomes.items()


@contextmanager
def _refusals(cell: SimulatedCell, outcomes: dict[SimulatedCell, Outcome]) -> Iterator[None]:
    """Make an outcome of what a policy raises: one that fails must not take the others along."""
    try:
        yield
    except CannotReplay as error:
        outcomes[cell] = Outcome(status="cannot_replay", reason=str(error))
    except DataError:
        raise
    except Exception as error:
        outcomes[cell] = Outcome(status="failed", reason=f"{type(error).__name__}: {error}")


def _outcome(one: Replay, row: RowBytes) -> Outcome:
    tally = one.finish()
    fetched, back = one.model.bytes_moved(tally, row)
    counts = {name: count for name, count in vars(tally).items() if name in SimulatedTraffic.model_fields}
    traffic = SimulatedTraffic(**counts, bytes_fetched=fetched, bytes_written_back=back)
    return Outcome(slots=one.model.slots, traffic=traffic)


def row_of(cell: SimulatedCell, *, ratio: float, rows: int, found: Mapping[SimulatedCell, Outcome]) -> SimulatedRow:
    """A row of results: of a cell with the slots of a ratio, on a trace of so many rows, from all outcomes."""
    outcome, bound, least = found[cell], bound_of(cell, found[cell], rows), None
    if bound is not None and bound in found and (optimum := found[bound].traffic) is not None:
        misses, moved = optimum.unique_misses, optimum.bytes_moved
        least = LeastTraffic(policy=str(bound.policy), slots=bound.slots, unique_misses=misses, bytes_moved=moved)
    return SimulatedRow(
        policy=str(cell.policy), cache_ratio=ratio, slots_asked=cell.slots, least=least, **dict(outcome)
    )


def bound_of(cell: SimulatedCell, outcome: Outcome, rows: int) -> SimulatedCell | None:
    """The optimum that a policy is compared with; None: it has no use for slots, or did not run.

    It has as many slots, to which a geometry may have rounded up what was asked for, and may read rows past the cache
    if the policy may.
    """
    if outcome.traffic is None or cell.policy.name == "compulsory":
        return None
    # with a level of RAM, rows of a batch that is larger than the slots alone are read past them
    apart = dict(cell.policy.parameters).get("ram", "0") != "0"
    past_it = (("bypass", "on"),) if apart or load(cell.policy).bypasses else ()
    policy = cell.policy if cell.policy.name == "belady" else Variant("belady", past_it)
    return SimulatedCell(policy=policy, slots=min(rows, max(cell.slots, outcome.slots)))
