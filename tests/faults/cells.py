"""The smallest cells there are, and running them."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from suite.records.record import Cell
from suite.run.memory_group import MemoryGroup
from suite.run.process import Limits, run_in_process
from suite.run.resources import CgroupUnavailable, runs
from suite.run.worker import CellResult, RunCell

GENEROUS = Limits(wall_s=120, stall_s=60, host_bytes=8 * 10**9)


def tiny_cell(system: str = "reference", **changes: Any) -> Cell:
    """A cell of five steps on some 2,000 rows; a name that is not registered is one of `tests.faults`."""
    values: dict[str, Any] = {
        "workload": "avazu",
        "data": "synthetic",
        "scale": "smoke",
        "device": "cpu",
        "optimizer": "sgd",
        "lr": 1.0,
        "eps": 1e-8,
        "batch_size": 32,
        "embedding_dim": 4,
        "max_rows": 2000,
        "bottom_mlp": (8,),
        "top_mlp": (8, 1),
        "cache_ratio": 0.5,
        "train_steps": 3,
        "counted_steps": 2,
        "quality_points": 1,
        "evaluation_batches": 2,
        "builds": 2,
        "warmup_steps": 1,
        "turns": 2,
        "turn_steps": 1,
        "seed": 0,
    }
    return Cell(**{**values, "system": system, **changes})


def fake(name: str) -> str:
    """The system `name` of `tests/faults/fakes.py`, as `--systems` takes it."""
    return f"tests.faults.fakes:{name}"


def run(cell: Cell, folder: Path, *, limits: Limits = GENEROUS, **changes: Any) -> CellResult:
    """Run a cell in a process of its own, its log in `folder`."""
    return run_in_process(RunCell(cell=cell), limits=limits, log=folder / "worker.log", **changes)


def wait_until(true: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Wait until something is true; that must be soon."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def left(pids: list[int]) -> list[int]:
    """Those of the processes that have not ended after a while."""
    with suppress(AssertionError):
        wait_until(lambda: not any(map(runs, pids)), within_s=30)
    return [pid for pid in pids if runs(pid)]


def needs_memory_groups() -> None:
    """Skip a test where no memory control group can be made."""
    try:
        with MemoryGroup():
            pass
    except CgroupUnavailable as error:
        pytest.skip(str(error))
