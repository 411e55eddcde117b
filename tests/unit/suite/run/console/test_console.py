"""What a run shows while it lasts."""

import io

import pytest

from suite.records.record import Status
from suite.run.console import display as display_module
from suite.run.console.display import Display
from suite.run.worker import Progress


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_log_tells_the_run_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of three cells of which one has its record already: one ends ok, one runs out of memory; then turns."""
    stream, clock = io.StringIO(), FakeClock()
    monkeypatch.setattr(display_module.time, "monotonic", clock)
    display = Display(stream)
    display.run_started(3, 1)
    display.note("data is synthetic")
    display.started("[2/3] cache[policy=lfu] x avazu")
    for step in range(1, 41):
        clock.now += 1
        display.progress(Progress(phase="time", step=step, steps=40))
    display.cell_finished(Status.OK, wall_s=40.0, summary="12.3 it/s, AUROC 0.78")
    display.warn("the clock of the GPU is capped: raise it")
    display.started("[3/3] full_gpu x avazu")
    clock.now += 5
    display.cell_finished(Status.OOM_DEVICE, wall_s=5.0, summary="", reason="needs 17 GB,\nhas 16 GB")
    display.started("turns of 2 systems")
    clock.now += 5
    display.progress(Progress(phase="full_gpu", step=9, steps=96))
    display.turns_finished()
    display.run_finished()
    assert stream.getvalue().splitlines() == [
        "3 cells, 1 of them done already",
        "note: data is synthetic",
        "[2/3] cache[policy=lfu] x avazu: started",
        "[2/3] cache[policy=lfu] x avazu: time 10/40 (elapsed 0:00:10)",
        "[2/3] cache[policy=lfu] x avazu: time 20/40 (elapsed 0:00:20)",
        "[2/3] cache[policy=lfu] x avazu: time 30/40 (elapsed 0:00:30)",
        "[2/3] cache[policy=lfu] x avazu: time 40/40 (elapsed 0:00:40)",
        "[2/3] cache[policy=lfu] x avazu: ok in 0:00:40, 12.3 it/s, AUROC 0.78",
        "warning: the clock of the GPU is capped: raise it",
        "[3/3] full_gpu x avazu: started",
        "[3/3] full_gpu x avazu: oom_device in 0:00:05",
        "    needs 17 GB, has 16 GB",
        "turns of 2 systems: started",
        "turns of 2 systems: done in 0:00:05",
        "finished in 0:00:50",
    ]
