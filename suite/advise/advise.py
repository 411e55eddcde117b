"""Device and host bytes of every system and cache size, and on described hardware the least time of a step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from suite.advise.bound import Hardware, LeastSeconds, NoBound, counts_of, least_seconds
from suite.advise.case import Case
from suite.records.groups import published_rows
from suite.records.measured import Model
from suite.records.record import Cell
from suite.records.scales import FULL
from suite.run.cell.feed import open_workload
from suite.simulate.models.model import CannotReplay, Span, Tally
from suite.simulate.trace import WorkloadTrace
from systems.contract import CacheRatio, DeviceBytes, Verdict
from workloads.batch import Workload

CLOSEST = {"full_gpu": "torchrec", "freq_cache": "ColossalAI"}
"""Published methods by the system here that keeps and moves the same rows. The published cache too ranks rows by
frequency and fetches between steps; torchrec's tables lay on the device, see `suite.records.groups.NOTE`."""


class Advised(Model):
    """One system at one cache size. Without described hardware nothing is replayed, and no step is bounded."""

    system: str
    cache_ratio: float | None
    """Cached rows as a share of all; None: there is no cache."""
    slots: int
    device_bytes: dict[str, int]
    """Device memory by purpose, the model included."""
    host_bytes: int
    fits: bool
    """Whether it is within the budget of the device."""
    hit_rate: float | None = None
    """1 - unique misses / unique ids."""
    overflows: bool = False
    """Whether some batch has more distinct rows than the cache has slots."""
    least_s: LeastSeconds | None = None
    published_steps_per_s: float | None = None
    """Published rate of the method of `CLOSEST` in this setting."""


class Advice(Model):
    """Result of `python -m suite advise`; `refused` has a reason by system."""

    schema_version: Literal[2] = 2
    workload: str
    scale: str
    batch_size: int
    embedding_dim: int
    optimizer: str
    hardware: str | None
    budget_bytes: int | None
    rows: tuple[Advised, ...]
    refused: dict[str, str]


def advise(
    cells: Sequence[Cell],
    hardware: Hardware | None,
    *,
    ratios: Sequence[float],
    budget: int | None,
    batches: int,
    on_progress: Callable[[str, int, int], None],
) -> Advice:
    """Advise on a setting.

    Args:
        cells: Systems in one setting; with `hardware` on a CUDA device.
        hardware: Bounds steps. None: bytes alone are given.
        ratios: Cached rows as shares of all.
        budget: Bytes of the device, the model included; None: whatever it takes.
        batches: To replay, a third of them before counting.
        on_progress: Told how far the replays are.
    """
    cell = cells[0]
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    stop = min(trace.length, batches)
    span = Span(counted_from=min(stop // 3, max(0, stop - 1)), stop=stop)
    rows: list[Advised] = []
    refused: dict[str, str] = {}
    for number, one in enumerate(cells):
        try:
            for case in _sizes(one, workload, ratios, budget):
                if case.support.verdict is not Verdict.YES:
                    refused.setdefault(one.system, case.support.reason)
                    continue
                row = Advised(
                    system=one.system,
                    cache_ratio=case.slots / case.spec.rows if case.caches else None,
                    slots=case.slots,
                    device_bytes=case.device_bytes,
                    host_bytes=case.host_bytes,
                    fits=budget is None or sum(case.device_bytes.values()) <= budget,
                )
                if hardware is not None:
                    on_progress("replaying ids", number, len(cells))
                    try:
                        row = row.model_copy(update=_bounds(case, counts_of(case, trace, span), hardware))
                    except (CannotReplay, NoBound) as error:
                        refused.setdefault(one.system, str(error))
                rows.append(row)
        except ImportError as error:
            refused[one.system] = f"needs {error.name}, which is not installed: run make setup"
    return Advice(
        **cell.model_dump(include={"workload", "scale", "batch_size", "embedding_dim", "optimizer"}),
        hardware=None if hardware is None else hardware.name,
        budget_bytes=budget,
        rows=tuple(rows),
        refused=refused,
    )


def _sizes(cell: Cell, workload: Workload, ratios: Sequence[float], budget: int | None) -> Iterator[Case]:
    """A system at every size: caches at every ratio and as large as a device budget allows."""
    whole = Case(cell=cell, workload=workload, budget=CacheRatio(ratio=1.0))
    if not whole.caches:
        yield whole
        return
    for ratio in ratios:
        yield replace(whole, budget=CacheRatio(ratio=ratio))
    left = 0 if budget is None else budget - sum(whole.beside_bytes.values())
    if left > 0:
        yield replace(whole, budget=DeviceBytes(total_bytes=left))


def _bounds(case: Case, counts: Tally, hardware: Hardware) -> dict[str, object]:
    """Fields of a row that follow from a replay and from hardware. Raises `NoBound`."""
    return {
        "hit_rate": 1 - counts.unique_misses / counts.unique_ids if case.caches else None,
        "overflows": counts.overflow_batches > 0,
        "least_s": least_seconds(case, counts, hardware),
        "published_steps_per_s": published_rate(case),
    }


def published_rate(case: Case) -> float | None:
    """The published rate of the closest method, where the setting is the published one."""
    cell = case.cell
    for row in published_rows(cell.workload):
        setting = (CLOSEST.get(cell.system), cell.scale, cell.batch_size, cell.embedding_dim)
        same_cache = not case.caches or case.budget == CacheRatio(ratio=row.cache_ratio)
        if same_cache and setting == (row.system, FULL.name, row.batch_size, FULL.embedding_dim):
            return row.steps_per_s
    return None
