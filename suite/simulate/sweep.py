"""Policies times cache sizes, each pair replayed on its own, several side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event, Lock
from typing import Literal

from suite.simulate.models.model import CannotReplay, RowBytes, Setting, Span, Tally, replay
from suite.simulate.models.registry import build
from suite.simulate.traces.trace import Trace
from systems.registry import Variant
from workloads.errors import DataError

ROW_BYTES = 20
"""What a replay takes on the host per row of the tables, at most."""
MEMORY_BYTES = 4_000_000_000
_TELL_EVERY_S = 0.25


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


def plan_jobs(*, rows: int, cores: int) -> int:
    """Replays side by side: as many as cores, unless they took more than 4 GB.

    Args:
        rows: Of all tables.
        cores: That may be used.
    """
    return max(1, min(cores, MEMORY_BYTES // (ROW_BYTES * rows)))


class _Stopped(BaseException):
    """Nobody waits for a replay any more."""


def run_cells(
    cells: Sequence[SimulatedCell],
    *,
    trace: Trace,
    span: Span,
    row: RowBytes,
    jobs: int,
    on_batches: OnBatches = lambda _: None,
) -> Iterator[Outcome]:
    """Replay cells, and give each as it ends. What is counted does not depend on `jobs`.

    Args:
        cells: In the order in which they start.
        trace: The stream.
        span: What is replayed, and what of it counted.
        row: What a row weighs.
        jobs: Threads, a cell at a time each; the loops of the models are compiled and do not hold the GIL.
        on_batches: Told of progress, by one thread at a time.

    Raises:
        DataError: the stream is damaged.
    """
    stopped, telling = Event(), Lock()

    def tell(batches: int) -> None:
        if stopped.is_set():
            raise _Stopped
        with telling:
            on_batches(batches)

    with ThreadPoolExecutor(jobs, thread_name_prefix="replay") as pool:
        coming = [pool.submit(run_cell, cell, trace=trace, span=span, row=row, on_batches=tell) for cell in cells]
        try:
            while coming:
                # Not an endless wait: a library's handler may have the system take up such a wait again after a Ctrl-C.
                ended, _ = wait(coming, timeout=_TELL_EVERY_S, return_when=FIRST_COMPLETED)
                for replayed in [one for one in coming if one in ended]:
                    coming.remove(replayed)
                    yield replayed.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def run_cell(
    cell: SimulatedCell, *, trace: Trace, span: Span, row: RowBytes, on_batches: OnBatches = lambda _: None
) -> Outcome:
    """Replay one cell here.

    Raises:
        DataError: the stream is damaged.
    """
    start = time.perf_counter()
    told, batches = start, 0

    def on_replayed(more: int) -> None:
        nonlocal told, batches
        batches += more
        if time.perf_counter() - told >= _TELL_EVERY_S:
            on_batches(batches)
            told, batches = time.perf_counter(), 0

    try:
        model = build(cell.policy, Setting(trace=trace, span=span, slots=cell.slots))
        start = time.perf_counter()
        tally = replay(model, on_batches=on_replayed)
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
