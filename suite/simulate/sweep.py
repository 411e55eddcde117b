"""Policies times cache sizes, each pair replayed on its own, several side by side."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event, Lock

from suite.simulate.models.model import CannotReplay, RowBytes, Setting, Span, replay
from suite.simulate.models.registry import build, load
from suite.simulate.results import Least, Outcome, Row, Traffic
from suite.simulate.trace import Trace
from systems.registry import Variant
from workloads import DataError

ROW_BYTES = 20
"""About what a replay takes on the host per row of the tables; caches of most rows take more."""
MEMORY_BYTES = 4_000_000_000
_WAIT_S = 0.25


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """One policy at one cache size."""

    policy: Variant
    slots: int


def slots_of(rows: int, ratio: float) -> int:
    """Slots of a cache that holds a share of all rows, as the systems round it."""
    return max(1, int(rows * ratio))


def plan_jobs(*, rows: int, cores: int) -> int:
    """Replays side by side of tables with so many rows: as many as cores, unless they took more than 4 GB."""
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
    on_batches: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[SimulatedCell, Outcome]]:
    """Replay cells, and give each with its outcome as it ends. What is counted does not depend on `jobs`.

    Args:
        cells: In the order in which they start.
        trace: The stream.
        span: What is replayed, and what of it counted.
        row: What a row weighs.
        jobs: Threads, a cell at a time each; the loops of the models are compiled and do not hold the GIL.
        on_batches: Told how many batches have been replayed, of all cells, by one thread at a time.

    Raises:
        DataError: the stream is damaged.
    """
    stopped, telling, done = Event(), Lock(), 0

    def tell(batches: int) -> None:
        nonlocal done
        if stopped.is_set():
            raise _Stopped
        with telling:
            done += batches
            on_batches(done)

    with ThreadPoolExecutor(jobs, thread_name_prefix="replay") as pool:
        coming = {pool.submit(_outcome, cell, trace, span, row, tell): cell for cell in cells}
        try:
            while coming:
                # Not an endless wait: a library's handler may have the system take up such a wait again after a Ctrl-C.
                ended, _ = wait(coming, timeout=_WAIT_S, return_when=FIRST_COMPLETED)
                for replayed in [one for one in coming if one in ended]:
                    yield coming.pop(replayed), replayed.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _outcome(cell: SimulatedCell, trace: Trace, span: Span, row: RowBytes, tell: Callable[[int], None]) -> Outcome:
    try:
        model = build(cell.policy, Setting(trace=trace, span=span, slots=cell.slots))
        start = time.perf_counter()
        tally = replay(model, on_batches=tell)
        took_s = time.perf_counter() - start
        lookups = tally.lookups * span.stop // max(1, tally.batches)  # those before the counted batches included
        traffic = Traffic.of(tally, model, row)
        return Outcome(slots=model.slots, traffic=traffic, replay_s=took_s, ids_per_s=lookups / took_s)
    except CannotReplay as error:
        return Outcome(status="cannot_replay", reason=str(error))
    except DataError:
        raise
    except Exception as error:  # one policy that fails must not take the others along
        return Outcome(status="failed", reason=f"{type(error).__name__}: {error}")


def row_of(
    cell: SimulatedCell, *, ratio: float, rows: int, found: Mapping[SimulatedCell, Outcome], per_table: bool
) -> Row:
    """A row of results.

    Args:
        cell: One that was replayed.
        ratio: That gave its slots.
        rows: Of the trace.
        found: All outcomes, those of the optimum among them; see `bound_of`.
        per_table: Keep counts by table.
    """
    outcome, bound, least = found[cell], bound_of(cell, found[cell], rows), None
    if bound is not None and bound in found and (optimum := found[bound].traffic) is not None:
        misses, moved = optimum.unique_misses, optimum.bytes_moved
        least = Least(policy=str(bound.policy), slots=bound.slots, unique_misses=misses, bytes_moved=moved)
    if outcome.traffic is not None and not per_table:
        outcome = outcome.model_copy(update={"traffic": outcome.traffic.model_copy(update={"per_table": None})})
    return Row(policy=str(cell.policy), cache_ratio=ratio, slots_asked=cell.slots, least=least, **dict(outcome))


def bound_of(cell: SimulatedCell, outcome: Outcome, rows: int) -> SimulatedCell | None:
    """The optimum that a policy is compared with; None: it has no use for slots, or did not run.

    It has as many slots, to which a geometry may have rounded up what was asked for, and may read rows past the cache
    if the policy may.
    """
    if outcome.traffic is None or cell.policy.name == "compulsory":
        return None
    past_it = (("bypass", "on"),) if load(cell.policy).bypasses else ()
    policy = cell.policy if cell.policy.name == "belady" else Variant("belady", past_it)
    return SimulatedCell(policy=policy, slots=min(rows, max(cell.slots, outcome.slots)))
