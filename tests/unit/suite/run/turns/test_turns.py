"""Who takes turns with whom, in which order and process, and what their records keep."""

import itertools
from collections import Counter
from itertools import pairwise

import pytest

from suite.records.measured import Turns
from suite.records.record import Check, Status, Verification
from suite.records.scales import LEAD_STEPS
from suite.run.process import Limits
from suite.run.turns import timing
from suite.run.turns.groups import BASELINE_REPEAT, LONG_TURN, MemoryNeed, arrange, balanced_orders, who_takes_turns
from suite.run.turns.timing import time_group, times_of
from suite.run.worker import Ack, Build, CellResult, Clear, Host, RunSteps, StepTiming
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import environment, measurement, record
from tests.unit.suite.run.runner_scenes import Notebook, QuietMachine

GB = 10**9
ROOM = MemoryNeed(host=100 * GB, device=100 * GB, disk=100 * GB)
REPEAT = "full_gpu" + BASELINE_REPEAT
LIMITS = Limits(wall_s=10, stall_s=10, host_bytes=GB)


def entrant(system, *, host_gb=1, memory=None, **changes):
    """A record of a tiny cell on a CPU that held so much, and `memory` elsewhere, and is `changes`."""
    cell = tiny_cell(system)
    found = measurement(cell)
    memory = found.memory.model_copy(
        update={"host_peak_rss_bytes": (1 + host_gb) * GB, "host_baseline_rss_bytes": GB, "device_used_bytes": None,
                "device_reserved_bytes": None, "anatomy_bytes": {}, **(memory or {})}
    )  # fmt: skip
    found = found.model_copy(
        update={
            "memory": memory,
            "same_kernel_as": None,
            "shares_process": True,
            "busy_between_steps": False,
            **changes,
        }
    )
    exact = Verification(checks=(Check(name="sgd: losses", passed=True, max_difference=0.0, tolerance=0.0),))
    made = record(system, where=environment(gpu=False))
    return made.model_copy(update={"cell": cell, "measurement": found, "verification": exact, "turns": None})


def names(contest):
    return [one.name for one in contest.participants]


# Orders


@pytest.mark.parametrize("systems", range(1, 10))
def test_every_system_has_every_place_and_follows_every_other_equally_often(systems):
    orders = balanced_orders(systems)
    places = Counter((place, who) for order in orders for place, who in enumerate(order))
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert (len(places), len(set(places.values()))) == (systems**2, 1)
    assert (len(followed), len(set(followed.values())) <= 1) == (systems * (systems - 1), True)


# Arrangement


def test_baseline_takes_turns_twice_and_kernels_of_others_not_at_all():
    records = [entrant("reference"), entrant("full_gpu"), entrant("fbgemm_uvm", same_kernel_as="full_gpu")]
    (contest,) = arrange(who_takes_turns(records), ROOM)
    assert names(contest) == ["full_gpu", REPEAT, "reference"]
    assert (contest.isolation, contest.turns, contest.steps) == ("one process", 6, 1)  # a whole design of three


def test_kernel_of_another_is_timed_where_that_other_one_is_not_there_or_failed():
    alike, other = entrant("fbgemm_uvm", same_kernel_as="full_gpu"), entrant("full_gpu")
    failed = other.model_copy(update={"status": Status.CRASHED})
    assert who_takes_turns([alike]) == who_takes_turns([alike, failed]) == [alike]


@pytest.mark.parametrize(
    ("host_gb", "way", "entrants"),
    [
        (
            33,
            "two by two",
            [["full_gpu", REPEAT], ["full_gpu", "reference"], ["full_gpu", "freq_cache"]],
        ),
        (60, "alone", [["full_gpu"], ["reference"], ["freq_cache"]]),
    ],
)
def test_what_does_not_fit_together_meets_the_baseline_or_nobody(host_gb, way, entrants):
    records = [entrant(name, host_gb=host_gb) for name in ("reference", "full_gpu", "freq_cache")]
    contests = arrange(records, ROOM)
    assert [names(contest) for contest in contests] == entrants
    assert {contest.isolation for contest in contests} == {way}


def test_baseline_that_does_not_fit_beside_itself_meets_the_others_once_each():
    large, small = [entrant("full_gpu", host_gb=60)], [entrant(name, host_gb=30) for name in ("reference", "hot_split")]
    contests = arrange([*small, *large], ROOM)
    assert [names(contest) for contest in contests] == [["full_gpu", "reference"], ["full_gpu", "hot_split"]]
    busy = [entrant("freq_cache", host_gb=30, busy_between_steps=True)]
    contests = arrange([*small, *large, *busy], ROOM)
    assert [names(contest)[1:] for contest in contests] == [["reference"], ["hot_split"], ["freq_cache"]]


@pytest.mark.parametrize(("short_turns", "turns"), [(20, 6), (40, 12), (2, 6)])
def test_turns_are_long_where_somebody_works_between_steps(short_turns, turns):
    """They take about twice the steps of short ones, in whole designs."""
    records = [entrant("full_gpu"), entrant("freq_cache", busy_between_steps=True)]
    longer = [one.model_copy(update={"cell": one.cell.model_copy(update={"turns": short_turns})}) for one in records]
    (contest,) = arrange(longer, ROOM)
    assert (contest.steps, contest.turns) == (LONG_TURN, turns)


@pytest.mark.parametrize(
    ("epoch_steps", "turns", "steps"), [(1000, 18, 3), (100, 12, 3), (56, 6, 3), (40, 6, 2), (20, 4, 1)]
)
def test_small_dataset_gives_fewer_designs_then_shorter_turns_then_a_part_of_a_design(epoch_steps, turns, steps):
    cell = {"turns": 18, "turn_steps": 3, "train_steps": 3, "counted_steps": 2, "warmup_steps": 4}
    records = [entrant(name, epoch_samples=32 * epoch_steps) for name in ("full_gpu", "reference")]
    small = [one.model_copy(update={"cell": one.cell.model_copy(update=cell)}) for one in records]
    (contest,) = arrange(small, ROOM)
    assert (contest.turns, contest.steps) == (turns, steps)
    assert contest.stream_steps == 4 + 2 * turns * (LEAD_STEPS + steps) <= epoch_steps


@pytest.mark.parametrize("systems", range(2, 10))
def test_turns_of_every_build_are_whole_designs_and_each_build_starts_with_another_order(held, systems):
    names = ["full_gpu", *(f"s{number}" for number in range(systems - 2))]
    scene, _ = held(*map(entrant, names))
    taken = [name for what, name in scene.asked if what == "RunSteps"]
    everyone = systems
    builds = len([name for what, name in scene.asked if what == "Build"]) // everyone
    per_build = len(taken) // builds
    firsts = set()
    for start in range(0, len(taken), per_build):
        turns = taken[start + everyone : start + per_build]  # the first steps of each warm up
        whole, alone = turns[: len(turns) // 2], turns[len(turns) // 2 :]
        for series in (whole, alone):
            orders = [tuple(series[at : at + everyone]) for at in range(0, len(series), everyone)]
            followed = Counter(pair for order in orders for pair in pairwise(order))
            assert len(set(followed.values())) == 1
        firsts.add(tuple(whole[:everyone]))
    assert len(firsts) == builds


def test_who_works_between_steps_meets_the_baseline_apart_from_those_who_do_not():
    records = [entrant(name) for name in ("full_gpu", "reference")]
    busy = [entrant(name, busy_between_steps=True) for name in ("freq_cache", "freq_cache[look_ahead=4]")]
    calm, long = arrange([*records, *busy], ROOM)
    assert names(calm) == ["full_gpu", REPEAT, "reference"]
    assert names(long) == ["full_gpu", "freq_cache", "freq_cache[look_ahead=4]"]
    assert [[one.own_process for one in group.participants] for group in (calm, long)] == [[False] * 3, [True] * 3]
    assert (calm.steps, long.steps > 1, long.isolation) == (1, True, "one process")
    pairs = arrange([*records, *busy], MemoryNeed(host=2 * GB, device=GB, disk=GB))
    assert [names(pair) for pair in pairs[2:]] == [["full_gpu", "freq_cache"], ["full_gpu", "freq_cache[look_ahead=4]"]]
    assert [pair.steps for pair in pairs] == [1, 1, long.steps, long.steps]


def test_needs_add_up_and_must_fit_in_every_kind_of_memory():
    memory = {"device_used_bytes": 2 * GB, "anatomy_bytes": {"disk/rows": 3 * GB}}
    records = [entrant(name, memory=memory) for name in ("reference", "freq_cache")]
    room = MemoryNeed(host=2 * GB, device=4 * GB, disk=6 * GB)
    assert [contest.isolation for contest in arrange(records, room)] == ["one process"]
    for kind in room._fields:
        less = room._replace(**{kind: getattr(room, kind) - 1})
        assert [contest.isolation for contest in arrange(records, less)] == ["alone", "alone"]


# Holding


class Scene:
    """Stands where workers are: every turn takes a second, twice as long for freq_cache."""

    def __init__(self, falls=()):
        self.falls, self.hosts, self.asked = falls, [], []

    def __call__(self, log):
        return FakeWorker(self, log)


class FakeWorker:
    phase, pid = "train", 1

    def __init__(self, scene, log):
        self._scene, self.log, self._request = scene, log, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request):
        self._request = request
        match request:
            case Host(cells=cells):
                self._names = list(cells)
                self._scene.hosts.append(self._names)
            case Build(name=name) | RunSteps(name=name):
                self._scene.asked.append((type(request).__name__, name))

    def answer(self, limits):
        match self._request:
            case RunSteps(name=name) if (name, len(self._names)) in self._scene.falls:
                return CellResult(status=Status.CRASHED, reason=f"{name} fell")
            case RunSteps(name=name, steps=steps):
                return StepTiming(seconds=steps * (2.0 if name == "freq_cache" else 1.0), wait_s=0.0, loss="0x1p-1")
            case Host() | Build() | Clear():
                return Ack()


@pytest.fixture
def held(tmp_path, monkeypatch):
    def go(*records, falls=()):
        scene = Scene(falls)
        monkeypatch.setattr(timing, "WorkerProcess", scene)
        (contest,) = arrange(records, ROOM)
        result = time_group(contest, limits=LIMITS, log=tmp_path / "turns.log")
        return scene, times_of(contest, result, identity="c")

    return go


def test_every_record_gets_its_own_seconds_and_the_baselines_of_the_same_turns(held):
    scene, times = held(entrant("full_gpu"), entrant("freq_cache"))
    ones, twos = ((1.0,) * 6,) * 2, ((2.0,) * 6,) * 2
    expected = Turns(
        contest="c",
        way="one process",
        steps=1,
        system_s=ones,
        baseline="full_gpu",
        baseline_s=ones,
        losses="equal",
        embedding_s=ones,
        baseline_embedding_s=ones,
    )
    slower = expected.model_copy(update={"system_s": twos, "embedding_s": twos})
    assert times == {"full_gpu": expected, "freq_cache": slower}
    assert scene.hosts == [["full_gpu", REPEAT, "freq_cache"]]
    assert Counter(scene.asked) == {
        (what, name): count
        for name in scene.hosts[0]
        for what, count in (("Build", 2), ("RunSteps", 2 * (1 + 2 * 6)))  # the first of each build warms up
    }


@pytest.mark.parametrize(("large_gb", "beside_itself"), [(1, True), (60, False)])
def test_baseline_keeps_the_times_of_its_first_contest(tmp_path, monkeypatch, large_gb, beside_itself):
    monkeypatch.setattr(timing, "WorkerProcess", Scene())
    monkeypatch.setattr(timing, "MachineMonitor", QuietMachine)
    monkeypatch.setattr(timing, "_room", lambda record: ROOM)
    busy = entrant("freq_cache", busy_between_steps=True)
    records = [entrant("full_gpu", host_gb=large_gb), entrant("reference"), busy]
    found = timing.take_turns(records, tmp_path / "turns.log", display=Notebook(), timeout_s=None)
    turns = {record.cell.system: record.turns for record in found}
    assert list(turns) == ["full_gpu", "reference", "freq_cache"]
    assert turns["full_gpu"].contest == turns["reference"].contest != turns["freq_cache"].contest
    assert (turns["full_gpu"].baseline_s is not None) == beside_itself
    steps = turns["freq_cache"].steps
    assert turns["freq_cache"].baseline_s == ((1.0 * steps,) * 2,) * 2


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Have records take turns two by two: what they are given, in order, and who was asked."""
    monkeypatch.setattr(timing, "MachineMonitor", QuietMachine)
    monkeypatch.setattr(timing, "_room", lambda record: ROOM)

    def go(records, falls=()):
        scene = Scene(falls)
        monkeypatch.setattr(timing, "WorkerProcess", scene)
        given = timing.take_turns(records, tmp_path / "turns.log", display=Notebook(), timeout_s=None)
        return given, scene

    return go


def test_contest_that_was_held_before_the_run_was_stopped_is_not_held_again(taken):
    records = [entrant(name, host_gb=33) for name in ("full_gpu", "reference", "freq_cache")]
    given, _ = taken(records)
    done = {record.cell.system: record for record in itertools.islice(given, 2)}  # stopped in the third contest
    assert list(done) == ["full_gpu", "reference"]
    given, scene = taken([done.get(record.cell.system, record) for record in records])
    assert [record.cell.system for record in given] == ["freq_cache"]
    assert scene.hosts == [["full_gpu", "freq_cache"]]


def test_baseline_that_falls_in_a_later_contest_keeps_the_times_of_the_first(taken):
    records = [entrant("full_gpu"), entrant("reference"), entrant("freq_cache", busy_between_steps=True)]
    given, _ = taken(records, falls={("full_gpu", 2), ("full_gpu", 1)})
    found = {one.cell.system: one for one in given}
    assert (found["full_gpu"].status, found["full_gpu"].turns is not None) == (Status.CRASHED, True)
    assert found["full_gpu"].turns.contest == found["reference"].turns.contest


def test_system_that_falls_when_all_take_turns_again_has_no_times_of_before(taken):
    records = [entrant("full_gpu"), entrant("freq_cache")]
    before = list(taken(records)[0])
    given, _ = taken([*before, entrant("reference")], falls={("freq_cache", 4), ("freq_cache", 1)})
    found = {record.cell.system: record for record in given}
    assert (found["freq_cache"].status, found["freq_cache"].turns) == (Status.CRASHED, None)
    assert found["reference"].turns.contest == found["full_gpu"].turns.contest != before[0].turns.contest


def test_progress_says_whose_turn_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "WorkerProcess", Scene())
    (contest,) = arrange([entrant("full_gpu"), entrant("freq_cache")], ROOM)
    told = []
    time_group(contest, limits=LIMITS, log=tmp_path / "turns.log", on_progress=told.append)
    assert told[0].phase == "build full_gpu"
    assert {"full_gpu", REPEAT, "freq_cache"} < {one.phase for one in told}
    assert (told[-1].step, told[-1].steps) == (71, 72)


def test_without_a_baseline_there_is_nothing_to_compare_with(held):
    _, times = held(entrant("reference"), entrant("freq_cache"))
    assert {(one.baseline, one.baseline_s, one.losses) for one in times.values()} == {(None, None, "not compared")}


def test_system_that_patches_a_library_has_a_process_of_its_own(held):
    scene, times = held(entrant("full_gpu"), entrant("freq_cache", shares_process=False), entrant("reference"))
    assert scene.hosts == [["full_gpu", REPEAT, "reference"], ["freq_cache"]]
    ways = {system: one.way for system, one in times.items()}
    assert ways == {"full_gpu": "one process", "reference": "one process", "freq_cache": "own process"}


def test_system_that_ends_the_shared_process_goes_on_in_its_own_and_the_others_too(held):
    scene, times = held(entrant("full_gpu"), entrant("freq_cache"), falls={("freq_cache", 3)})
    assert scene.hosts[1:] == [["full_gpu", REPEAT], ["freq_cache"]]
    assert {system: one.way for system, one in times.items()} == {
        "full_gpu": "one process",
        "freq_cache": "own process",
    }


@pytest.mark.parametrize(
    ("falls", "left"),
    [({("freq_cache", 4), ("freq_cache", 1)}, "full_gpu"), ({("full_gpu", 4), ("full_gpu", 1)}, None)],
)
def test_system_that_ends_its_own_process_too_is_left_out_of_the_contest(held, falls, left):
    _, times = held(entrant("full_gpu"), entrant("freq_cache"), entrant("reference"), falls=falls)
    fell = next(iter(falls))[0]
    assert (times[fell].status, times[fell].reason) == (Status.CRASHED, f"{fell} fell")
    assert times["reference"].baseline == left


def test_loss_that_differs_where_arithmetic_is_the_same_is_a_wrong_answer(held, monkeypatch):
    answer = FakeWorker.answer

    def other_bits(self, limits):
        found = answer(self, limits)
        wrong = isinstance(found, StepTiming) and self._request.name == "freq_cache"
        return found.model_copy(update={"loss": "0x1.0000000000001p-1"}) if wrong else found

    monkeypatch.setattr(FakeWorker, "answer", other_bits)
    _, times = held(entrant("full_gpu"), entrant("freq_cache"))
    assert (times["full_gpu"].losses, times["freq_cache"].status) == ("equal", Status.WRONG_ANSWER)
    assert times["freq_cache"].reason.startswith("at the end of turn 1 its loss differs from full_gpu's")
    loose = entrant("freq_cache")
    (check, *_) = loose.verification.checks
    checks = (check.model_copy(update={"max_difference": 1e-9}),)
    loose = loose.model_copy(update={"verification": loose.verification.model_copy(update={"checks": checks})})
    assert held(entrant("full_gpu"), loose)[1]["freq_cache"].losses == "not compared"
