import io
import json

import pytest
from rich.console import Console

from suite.records.record import Status
from suite.run.console.display import Display, JsonDisplay, LiveDisplay, PlainDisplay, QuietDisplay, make_display
from suite.run.worker import Progress


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def play(display: Display, clock: FakeClock) -> None:
    """A run of three cells of which one has its record already: one ends ok, one runs out of memory."""
    with display:
        display.run_started(3, 1)
        display.note("data is synthetic")
        display.cell_started(2, "cache[policy=lfu] x avazu")
        for step in range(1, 41):
            clock.now += 1
            display.progress(Progress(phase="time", step=step, steps=40))
        display.cell_finished(Status.OK, wall_s=40.0, summary="12.3 it/s, AUROC 0.78")
        display.warn("the clock of the GPU is capped: raise it")
        display.cell_started(3, "full_gpu x avazu")
        clock.now += 5
        display.cell_finished(Status.OOM_DEVICE, wall_s=5.0, summary="", reason="needs 17 GB,\nhas 16 GB")
        display.run_finished()


def test_plain_display_tells_the_run_in_lines(clock: FakeClock) -> None:
    stream = io.StringIO()
    play(PlainDisplay(stream, clock), clock)
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
        "finished in 0:00:45",
    ]


def test_json_display_emits_one_object_per_event(clock: FakeClock) -> None:
    stream = io.StringIO()
    play(JsonDisplay(stream, clock), clock)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    names = [event["event"] for event in events]
    assert [name for name in names if name != "progress"] == [
        "run_started", "note", "cell_started", "cell_finished", "warning", "cell_started", "cell_finished",
        "run_finished",
    ]  # fmt: skip
    assert names.count("progress") == 40
    assert events[0] == {"event": "run_started", "at_s": 0.0, "cells": 3, "done_already": 1}
    finished = [event for event in events if event["event"] == "cell_finished"]
    assert [event["status"] for event in finished] == ["ok", "oom_device"]
    assert finished[0]["remaining_s"] == 40.0
    assert finished[1]["reason"] == "needs 17 GB,\nhas 16 GB"


def test_live_display_lists_finished_cells_with_status_and_restores_the_terminal(clock: FakeClock) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    play(LiveDisplay(stream, clock, console=console), clock)
    text = stream.getvalue()
    assert "cache[policy=lfu] x avazu: ok in 0:00:40, 12.3 it/s, AUROC 0.78" in text
    assert "full_gpu x avazu: oom_device in 0:00:05" in text
    assert "needs 17 GB, has 16 GB" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor stays hidden"


def test_live_display_shows_the_cell_in_hand(clock: FakeClock) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with LiveDisplay(stream, clock, console=console) as display:
        display.run_started(4, 0)
        display.cell_started(1, "a")
        clock.now += 60
        display.cell_finished(Status.OK, wall_s=60.0, summary="")
        display.cell_started(2, "b")
        clock.now += 20
        display.progress(Progress(phase="verify", step=3, steps=8))
    assert "[2/4] b: verify 3/8 (elapsed 0:01:20, about 0:02:40 left)" in stream.getvalue()
    with display:
        display.turns_started("turns of 2 systems")
        display.progress(Progress(phase="full_gpu", step=9, steps=96, ratios={"reference": 0.682}))
        clock.now += 5
        display.turns_finished()
    shown = " ".join(stream.getvalue().split())
    assert "turns of 2 systems: full_gpu 9/96; relative to the baseline: reference 0.68 (elapsed" in shown
    assert "turns of 2 systems: done in 0:00:05; relative to the baseline: reference 0.68" in shown


@pytest.mark.parametrize(
    ("quiet", "as_json", "stream", "variables", "kind"),
    [
        (False, False, Terminal(), {}, LiveDisplay),
        (False, False, io.StringIO(), {}, PlainDisplay),
        (False, False, Terminal(), {"NO_COLOR": "1"}, PlainDisplay),
        (False, False, Terminal(), {"TERM": "dumb"}, PlainDisplay),
        (True, False, Terminal(), {}, QuietDisplay),
        (True, True, io.StringIO(), {}, JsonDisplay),
    ],
)
def test_display_suits_the_flags_and_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    quiet: bool,
    as_json: bool,
    stream: io.StringIO,
    variables: dict[str, str],
    kind: type[Display],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert type(make_display(quiet, as_json, stream=stream)) is kind
