"""Ctrl-C before any line of a batch's life: what is saved then is right, training goes on rightly, or both are refused.

An interrupt is raised by a trace function, before each line of the cache that the training thread comes to; and by real
signals, at random moments.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from linecache import getline
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
import torch

import systems
from systems.freq_cache.pipeline import PlanningFailed
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.conftest import CORES
from tests.contract.scenes import snapshot
from tests.faults.freq_cache_training import TABLES, TWO_WIDTHS, Plain, batch, built, learn, plain_after
from tests.faults.kept_tiers import KeptTier

STEPS, FROM, TO = 8, 3, 6
"""Steps in all, and the first and the one behind the last that are interrupted."""
IN_CI = "CI" in os.environ
LINES = 80
"""Of 340 to 510 in each kind, drawn anew at every run by hand. In CI every line has its turn in one of the kinds."""
REAL_INTERRUPTS = 20 if IN_CI else 70
"""Of each kind."""
SOURCES = str(Path(systems.__file__).parent)

KINDS: dict[str, dict[str, Any]] = {
    "alone": {"look_ahead": 0},
    "ahead": {"look_ahead": 2},
    "no free core": {"look_ahead": 4, "torch_threads": CORES},
    "overflow": {"look_ahead": 2, "cache_ratio": 0.04},
    "file": {"look_ahead": 1, "file": True},
    "ram": {"look_ahead": 1, "file": True, "ram_bytes": 1000},
    "lfu": {"look_ahead": 4, "policy": "lfu"},
    "widths": {"look_ahead": 2, "tables": TWO_WIDTHS, "cache_ratio": 0.4},
    "together": {"look_ahead": 2, "cache_ratio": 0.25, "lookups_per_backward": 2},
    "static": {
        "look_ahead": 0,
        "policy": "static",
        "frequencies": {t.name: torch.arange(t.num_embeddings) for t in TABLES},
    },
}


class Run:
    """Training that is interrupted, and what became of the rows."""

    def __init__(self, kind: str, path: Path) -> None:
        choices = dict(KINDS[kind])
        self.tables = choices.pop("tables", TABLES)
        torch.set_num_threads(choices.pop("torch_threads", 1))
        self.path, self.look_ahead = path, choices["look_ahead"]
        if choices.pop("file", False):
            choices["directory"] = path / "rows"
        self.choices = choices
        self.collection = built(self.tables, **choices)
        Plain(self.tables).start(self.collection)
        self.batches = {step: batch(step, self.tables) for step in range(STEPS)}
        self.done = 0
        self.announced = 0

    def train(self, steps: range) -> None:
        for step in steps:
            while self.look_ahead and self.announced < min(step + 1 + self.look_ahead, STEPS):
                self.announced += 1  # whatever becomes of it: a batch that is not announced is looked up all the same
                self.collection.prefetch(self.batches[self.announced - 1])
            pooled = self.collection(self.batches[step]).values()
            learn(pooled, step)
            del pooled
            self.done = step + 1

    def saved(self) -> dict[str, torch.Tensor]:
        """The rows of what is saved now."""
        self.collection.save(self.path / "saved")
        again = built(self.tables, **{**self.choices, "look_ahead": 0, "directory": None, "ram_bytes": 0})
        again.load(self.path / "saved")
        return snapshot(again)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name], rows) for name, rows in expected.items())


Line = tuple[str, int]


def watched(work: Callable[[], object], before_line: Callable[[Line], object]) -> None:
    """Do some work, and call before every line of the cache that this thread comes to: it may raise."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            before_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()  # coverage's, which goes on afterwards
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


def may_be_interrupted(line: Line) -> bool:
    """Not a `with`, whose line comes again as it ends: the lock would be kept, and signals do not come there."""
    return not getline(*line).strip().startswith("with ")


def lines_of(work: Callable[[], None], at: tuple[Line, int] | None = None) -> Counter[Line]:
    """How often this thread comes to each line of the cache; before it comes to one that often it is interrupted."""
    seen: Counter[Line] = Counter()

    def count_line(line: Line) -> None:
        seen[line] += 1
        if (line, seen[line]) == at:
            raise KeyboardInterrupt

    watched(work, count_line)
    return Counter({line: times for line, times in seen.items() if may_be_interrupted(line)})


@cache
def lines_by_kind() -> dict[str, Counter[Line]]:
    """Lines of the cache by kind, and how often the training thread comes to them."""
    found = {}
    for kind in KINDS:
        with TemporaryDirectory() as folder:
            run = Run(kind, Path(folder))
            run.train(range(FROM))
            found[kind] = lines_of(partial(run.train, range(FROM, TO)))
            run.collection.close()
    return found


def chosen_lines(kind: str) -> list[Line]:
    """The lines of a kind before which it is interrupted."""
    lines = sorted(lines_by_kind()[kind])
    if not IN_CI:
        return random.sample(lines, k=min(len(lines), LINES))
    takers = {line: [kind for kind, found in lines_by_kind().items() if line in found] for line in lines}
    return [line for line in lines if kind == takers[line][line[1] % len(takers[line])]]


def outcome_of(run: Run) -> str:
    """Of a run that was interrupted: saves, goes on to the end and compares. Returns what was refused, if anything."""
    try:
        saved = run.saved()
    except PlanningFailed:
        with pytest.raises(PlanningFailed):
            run.collection(run.batches[run.done])
        return "refused"
    assert any(same(saved, plain_after(run.done + more, run.tables)) for more in (0, 1)), "saved rows"
    trained = same(saved, plain_after(run.done + 1, run.tables))
    if trained:
        run.done += 1
    run.train(range(run.done, STEPS))
    assert same(snapshot(run.collection), plain_after(STEPS, run.tables)), "rows at the end"
    return "right"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_before_any_line_leaves_the_cache_right_or_refused(kind: str, tmp_path: Path) -> None:
    seen, chosen, outcomes = lines_by_kind()[kind], chosen_lines(kind), []
    for number, line in enumerate(chosen):
        run, time_of_it = Run(kind, tmp_path / str(number)), seen[line] // 2 + 1
        run.train(range(FROM))
        try:
            lines_of(partial(run.train, range(FROM, TO)), at=(line, time_of_it))
        except KeyboardInterrupt:
            outcomes.append(outcome_noted(run, f"interrupted before {line}, the {time_of_it}. time"))
        # else threads came in another order, and this one came there less often
        run.collection.close()
    assert len(outcomes) > len(chosen) / 2
    # a planner that is interrupted on the training thread cannot go on; one on a thread of its own is not interrupted
    all_right = outcomes.count("right") == len(outcomes)
    assert all_right if run.collection.threads else outcomes.count("right") > len(outcomes) / 2


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """An interrupt that a trace raised may have come where the cache had put a handler of its own in place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize("kind", KINDS)
def test_real_interrupts_at_random_moments_lose_nothing(kind: str, tmp_path: Path) -> None:
    """Signals come to the process at any time, as from a terminal: planning is not cut short by them, so all go on."""
    draw, interrupts = random.Random(kind), 0
    for number in range(REAL_INTERRUPTS):
        run = Run(kind, tmp_path / str(number))
        run.train(range(1))
        sender = threading.Timer(draw.uniform(0, 0.03), os.kill, (os.getpid(), signal.SIGINT))
        try:
            sender.start()
            run.train(range(1, STEPS))
            sender.join()
            time.sleep(0.01)  # it may be told to this thread a moment later
        except KeyboardInterrupt:
            interrupts += 1
            sender.join()
        assert outcome_noted(run, f"interrupt {number}") == "right"
        run.collection.close()
    assert interrupts > REAL_INTERRUPTS / 2


def outcome_noted(run: Run, note: str) -> str:
    try:
        return outcome_of(run)
    except Exception as error:
        error.add_note(note)
        raise


@pytest.mark.slow
def test_interrupt_before_any_line_of_a_write_to_a_file_leaves_all_rows_old_or_all_new(tmp_path: Path) -> None:
    layout, rows = RowLayout(12, torch.float32, {"sum": 1}), torch.arange(0, 20_000, 7)
    first, second = (torch.rand(rows.numel(), layout.width) for _ in range(2))
    old, new = (torch.zeros(20_000, layout.width).index_copy(0, rows, records) for records in (first, second))

    def opened(name: str) -> KeptTier:
        return KeptTier(tmp_path / name, rows=20_000, layout=layout)

    def held(tier: KeptTier) -> torch.Tensor:
        out = layout.empty(20_000)
        tier.read(torch.arange(20_000), out)
        return out

    tier = opened("before")
    for _ in range(4):
        tier.write(rows, first)
        tier.commit({})
    tier.close()
    outcomes, interrupted = [], True
    while interrupted:
        name = str(len(outcomes))
        shutil.copytree(tmp_path / "before", tmp_path / name)
        tier, lines = opened(name), iter(range(len(outcomes)))
        assert tier._positions.offer(rows.numel()).size  # free positions will be in use

        def interrupt(line: Line, lines: Iterator[int] = lines) -> None:
            if may_be_interrupted(line) and next(lines, None) is None:
                raise KeyboardInterrupt

        try:
            watched(partial(tier.write, rows, second), interrupt)
            interrupted = False
        except KeyboardInterrupt:
            pass
        found = held(tier)
        assert torch.equal(found, old) or torch.equal(found, new), f"line {name}"
        outcomes.append(torch.equal(found, new))
        tier.commit({})
        tier.close()
        again = opened(name)
        assert torch.equal(held(again), found), f"line {name}, opened again"
        again.write(rows, second)
        assert torch.equal(held(again), new)
        again.close()
    assert outcomes == sorted(outcomes)
    assert outcomes[0] < outcomes[-2]  # some lines come after the rows have moved
