"""Policies times cache sizes, each pair replayed on its own, here or in processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch

from suite.simulate.models.model import CannotReplay, RowBytes, Setting, Span, Tally, replay
from suite.simulate.models.registry import build
from suite.simulate.traces.trace import Trace
from systems.registry import Variant
from workloads.errors import DataError

PROCESS_BYTES = 600_000_000
ROW_BYTES = 20
"""What a process takes on the host: interpreter and libraries, and per row of the tables. Static frequencies, the most
there is, are 8 B per row beside the planner's index of 4 B, and the ranks of 2 B that are made from them."""
MEMORY_BYTES = 4_000_000_000
_WORTH_PROCESSES = 500_000_000
"""Ids to replay from which processes pay: each takes several seconds of a core to start."""
_TELL_EVERY_S = 0.25

OpenTrace = Callable[[], Trace]
"""Opens the stream; pickled, for every process opens it anew."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """One policy at one cache size."""

    policy: Variant
    slots: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a cell ended.

    Attributes:
        status: `cannot_replay`: the policy cannot run with so few slots. `failed`: it should have.
        reason: Why it is not `ok`.
        slots: Rows that the modelled cache holds, which its geometry may round.
        bypasses: See `CacheModel`.
        tally: What was counted.
        bytes_moved: Bytes fetched and written back in the counted batches.
        replay_s: Duration of the replay, the making of batches included.
        replayed_lookups: Ids replayed, those before the counted batches included.
    """

    cell: SimulatedCell
    status: Literal["ok", "cannot_replay", "failed"]
    reason: str = ""
    slots: int = 0
    bypasses: bool = False
    tally: Tally | None = None
    bytes_moved: tuple[int, int] = (0, 0)
    replay_s: float = 0.0
    replayed_lookups: int = 0


OnBatches = Callable[[int], None]
"""Told of so many more batches replayed, of any cell."""


def slots_of(rows: int, ratio: float) -> int:
    """Slots of a cache that holds a share of all rows, as the systems round it."""
    return max(1, int(rows * ratio))


def plan_jobs(*, rows: int, lookups: int, cores: int) -> int:
    """Processes that replay side by side: as many as cores, unless they took more than 4 GB or there is little to do.

    Args:
        rows: Of all tables.
        lookups: Ids to replay in all.
        cores: That may be used.
    """
    if lookups < _WORTH_PROCESSES:
        return 1
    return max(1, min(cores, MEMORY_BYTES // (PROCESS_BYTES + ROW_BYTES * rows)))


def run_cells(
    cells: Sequence[SimulatedCell],
    *,
    open_trace: OpenTrace,
    span: Span,
    row: RowBytes,
    jobs: int,
    on_batches: OnBatches = lambda _: None,
) -> Iterator[Outcome]:
    """Replay cells, and give each as it ends, in any order. What is counted does not depend on `jobs`.

    Args:
        cells: In the order in which they start.
        open_trace: Opens the stream.
        span: What is replayed, and what of it counted.
        row: What a row weighs.
        jobs: Cells at a time; 1: here, else in as many spawned processes.
        on_batches: Told of progress.

    Raises:
        DataError: the stream is damaged.
    """
    if jobs == 1:
        trace = open_trace()
        for cell in cells:
            yield run_cell(cell, trace=trace, span=span, row=row, on_batches=on_batches)
        return
    with _Workers(min(jobs, len(cells)), open_trace=open_trace, span=span, row=row) as workers:
        yield from workers.run(cells, on_batches)


def run_cell(
    cell: SimulatedCell, *, trace: Trace, span: Span, row: RowBytes, on_batches: OnBatches = lambda _: None
) -> Outcome:
    """Replay one cell here.

    Raises:
        DataError: the stream is damaged.
    """
    start = time.perf_counter()
    told, batches = start, 0

    def on_batch() -> None:
        nonlocal told, batches
        batches += 1
        if time.perf_counter() - told >= _TELL_EVERY_S:
            on_batches(batches)
            told, batches = time.perf_counter(), 0

    try:
        model = build(cell.policy, Setting(trace=trace, span=span, slots=cell.slots))
        start = time.perf_counter()
        tally = replay(model, on_batch=on_batch)
        outcome = Outcome(
            cell=cell,
            status="ok",
            slots=model.slots,
            bypasses=model.bypasses,
            tally=tally,
            bytes_moved=model.bytes_moved(tally, row),
            replay_s=time.perf_counter() - start,
            replayed_lookups=tally.lookups * span.stop // max(1, tally.batches),
        )
    except CannotReplay as error:
        outcome = Outcome(cell=cell, status="cannot_replay", reason=str(error))
    except DataError:
        raise
    except Exception as error:  # one policy that fails must not take the others along
        outcome = Outcome(cell=cell, status="failed", reason=f"{type(error).__name__}: {error}")
    on_batches(batches)
    return outcome


@dataclass
class _Worker:
    """A process, the pipe to it, and what it is at."""

    process: BaseProcess
    pipe: Connection
    cell: SimulatedCell | None = None


class _Workers:
    """Processes that replay cells; all of them end with the block, whatever they are at."""

    def __init__(self, count: int, *, open_trace: OpenTrace, span: Span, row: RowBytes) -> None:
        context = multiprocessing.get_context("spawn")  # torch's threads hang in forked children
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._workers: list[_Worker] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, threads, open_trace, span, row), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def run(self, cells: Iterable[SimulatedCell], on_batches: OnBatches) -> Iterator[Outcome]:
        waiting = iter(cells)
        for worker in self._workers:
            self._give(worker, next(waiting, None))
        while busy := {worker.pipe: worker for worker in self._workers if worker.cell is not None}:
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index] # `wait` gives back what it got
                said = self._heard(worker)
                if isinstance(said, int):
                    on_batches(said)
                elif isinstance(said, DataError):
                    raise said
                else:
                    alive = worker.process.is_alive()
                    worker.cell = None
                    if alive:
                        self._give(worker, next(waiting, None))
                    yield said
        for cell in waiting:
            yield Outcome(cell=cell, status="failed", reason="no process is left to replay it: give --jobs 1")

    def _give(self, worker: _Worker, cell: SimulatedCell | None) -> None:
        if cell is not None:
            worker.cell = cell
            with suppress(BrokenPipeError):  # it is dead, which is found out when it is listened to
                worker.pipe.send(cell)

    def _heard(self, worker: _Worker) -> Any:  # noqa: ANN401 - a number of batches, an outcome or an error
        try:
            return worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            assert worker.cell is not None
            how = f"its process ended with {worker.process.exitcode}, maybe for want of memory: give --jobs 1"
            return Outcome(cell=worker.cell, status="failed", reason=how)


def _work(pipe: Connection, threads: int, open_trace: OpenTrace, span: Span, row: RowBytes) -> None:
    """The life of a process: cells in, progress and outcomes out."""
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):  # the parent ends, and knows
        try:
            trace = open_trace()
            while True:
                cell = pipe.recv()
                pipe.send(run_cell(cell, trace=trace, span=span, row=row, on_batches=pipe.send))
        except DataError as error:
            pipe.send(error)
