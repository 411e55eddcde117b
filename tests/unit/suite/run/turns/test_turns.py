"""In which order and process systems take turns, and what their records keep."""

import itertools
from collections import Counter

import pytest

from suite.records.measured import Turns
from suite.records.record import Status, Verification
from suite.records.scales import LEAD_STEPS
from suite.run.process import Limits
from suite.run.turns import timing
from suite.run.turns.groups import arrange
from suite.run.turns.timing import take_turns, time_group, times_of
from suite.run.worker import Build, CellResult, RunSteps, StepTiming
from tests.faults.cells import fake
from tests.unit.suite.run.runner_scenes import EXACT, GB, REPEAT, ROOM, Notebook, QuietMachine, entrant

LIMITS = Limits(wall_s=10, stall_s=10, host_bytes=GB)


class Scene:
    """Stands where workers are: every step takes a second, twice as long for freq_cache; `falls` end theirs.

    Whoever takes a turn right after another system of its process takes `crowded` times as long.
    """

    def __init__(self, falls=(), crowded=1.0):
        self.falls, self.crowded, self.hosts, self.asked, self.leads = falls, crowded, [], [], []

    def __call__(self, log):
        return FakeWorker(self)


class FakeWorker:
    def __init__(self, scene):
        self._scene, self._request, self._names = scene, None, []
        scene.hosts.append(self._names)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request):
        self._request = request
        match request:
            case Build(name=name) | RunSteps(name=name):
                self._scene.asked.append((type(request).__name__, name))
                if name not in self._names:
                    self._names.append(name)
        if isinstance(request, RunSteps):
            self._scene.leads.append(request.lead_steps)

    def answer(self, limits):
        match self._request:
            case RunSteps(name=name) if (name, len(self._names)) in self._scene.falls:
                return CellResult(status=Status.CRASHED, reason=f"{name} fell")
            case RunSteps(name=name, steps=steps):
                seconds = steps * (2.0 if name == "freq_cache" else 1.0)
                if len(self._names) > 1 and self._scene.asked[-2][1] != name:
                    seconds *= self._scene.crowded
                return StepTiming(seconds=seconds, wait_s=0.0, loss="0x1p-1")
            case Build():
                return None


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """Time records as one group: what was asked of workers, and the times by system."""

    def go(*records, falls=(), crowded=1.0, **options):
        scene = Scene(falls, crowded)
        monkeypatch.setattr(timing, "WorkerProcess", scene)
        (group,) = arrange(records, ROOM)
        result = time_group(group, limits=LIMITS, log=tmp_path / "turns.log", **options)
        return scene, times_of(group, result, identity="c")

    return go


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Have records take turns: what they are given, in order, and what was asked of workers."""
    monkeypatch.setattr(timing, "MachineMonitor", QuietMachine)
    monkeypatch.setattr(timing, "_room", lambda record: ROOM)

    def go(records, falls=()):
        scene = Scene(falls)
        monkeypatch.setattr(timing, "WorkerProcess", scene)
        return take_turns(records, tmp_path / "turns.log", display=Notebook(), timeout_s=None), scene

    return go


def test_every_record_gets_its_own_seconds_and_the_baselines_of_the_same_turns(timed):
    told = []
    scene, times = timed(entrant("full_gpu"), entrant("freq_cache"), on_progress=told.append)
    ones, twos = ((1.0,) * 3,) * 2, ((2.0,) * 3,) * 2
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
        for what, count in (("Build", 2), ("RunSteps", 2 * (1 + 2 * 3)))  # the first of each build warms up
    }
    assert told[0].phase == "build full_gpu"
    assert {*scene.hosts[0]} < {one.phase for one in told}
    assert (told[-1].step, told[-1].steps) == (35, 36)


@pytest.mark.parametrize("systems", range(2, 10))
def test_turns_of_all_builds_are_whole_designs_and_each_build_starts_with_another_order(timed, systems):
    """Every system has every place, and follows every other one, equally often (Williams, 1949)."""
    scene, _ = timed(*map(entrant, ["full_gpu", *(f"s{number}" for number in range(systems - 2))]))
    taken = [name for what, name in scene.asked if what == "RunSteps"]
    per_build = len(taken) // 2
    builds = [taken[start + systems : start + per_build] for start in (0, per_build)]  # the first steps warm up
    for kind in (0, 1):  # turns of the whole step, and of the embedding step alone
        orders = [
            tuple(turns[at : at + systems])
            for turns in builds
            for at in range(kind * len(turns) // 2, (1 + kind) * len(turns) // 2, systems)
        ]
        places = Counter((place, who) for order in orders for place, who in enumerate(order))
        followed = Counter(pair for order in orders for pair in itertools.pairwise(order))
        assert (len(places), len(set(places.values()))) == (systems**2, 1)
        assert (len(followed), len(set(followed.values()))) == (systems * (systems - 1), 1)
    assert builds[0][:systems] != builds[1][:systems]


def test_systems_run_alone_behind_their_own_turns(timed):
    scene, times = timed(*(entrant(name, cell={"warmup_steps": 20}) for name in ("full_gpu", "freq_cache")))
    half = len(scene.asked) // 2
    steps = [name for what, name in scene.asked[:half] if what == "RunSteps"]
    assert steps[:3] == ["full_gpu", REPEAT, "freq_cache"]  # warm-up of the embeddings
    for row in (steps[start : start + 6] for start in (3, 9, 15)):  # three turns, a run alone behind each
        assert row == [name for name in row[::2] for _ in range(2)]
        assert len(set(row)) == 3
    assert len(steps) == 3 + 3 * 3 + 2 * 3 * 3
    assert scene.leads == [0] * 3 + [LEAD_STEPS] * (len(steps) - 3) + [0] * 3 + [LEAD_STEPS] * (len(steps) - 3)
    assert times["freq_cache"].alone_s == ((2.0,) * 3,) * 2
    assert times["freq_cache"].baseline_alone_s == times["full_gpu"].alone_s == ((1.0,) * 3,) * 2
    assert times["freq_cache"].alone_behind == (0, 1, 2)


@pytest.mark.parametrize(("crowded", "apart"), [(0.94, True), (1.04, False), (1.06, True)])
def test_systems_whose_process_shifts_the_baselines_pace_are_timed_again_in_processes_of_their_own(
    timed, crowded, apart
):
    records = [entrant(name, cell={"warmup_steps": 20}) for name in ("full_gpu", "freq_cache")]
    scene, times = timed(*records, crowded=crowded)
    together = [["full_gpu", REPEAT, "freq_cache"]]
    assert scene.hosts == together + [[name] for name in together[0]] * apart
    assert {one.way for one in times.values()} == {"own process" if apart else "one process"}
    behind = 2.0 if apart else 2.0 * crowded
    # in the second build its first turn follows its own warm-up
    assert times["freq_cache"].system_s == ((behind, behind, behind), (2.0, behind, behind))


@pytest.mark.parametrize(("large_gb", "beside_itself"), [(1, True), (60, False)])
def test_baseline_keeps_the_times_of_its_first_group_also_if_it_falls_in_a_later_one(taken, large_gb, beside_itself):
    records = [entrant("full_gpu", host_gb=large_gb), entrant("reference")]
    records.append(entrant("freq_cache", busy_between_steps=True))
    turns = {record.cell.system: record.turns for record in taken(records)[0]}
    assert list(turns) == ["full_gpu", "reference", "freq_cache"]
    assert turns["full_gpu"].contest == turns["reference"].contest != turns["freq_cache"].contest
    assert (turns["full_gpu"].baseline_s is not None) == beside_itself
    assert turns["freq_cache"].baseline_s == ((1.0 * turns["freq_cache"].steps,) * 2,) * 2
    given, _ = taken(records, falls={("full_gpu", 1)})
    found = {one.cell.system: one for one in given}
    assert found["full_gpu"].status is Status.CRASHED
    assert found["full_gpu"].turns.contest == found["reference"].turns.contest


def test_group_that_was_timed_before_the_run_was_stopped_is_not_timed_again(taken):
    records = [entrant(name, host_gb=33) for name in ("full_gpu", "reference", "freq_cache")]
    given, _ = taken(records)
    done = {record.cell.system: record for record in itertools.islice(given, 2)}  # stopped in the third group
    assert list(done) == ["full_gpu", "reference"]
    given, scene = taken([done.get(record.cell.system, record) for record in records])
    assert [record.cell.system for record in given] == ["freq_cache"]
    assert scene.hosts == [["full_gpu", "freq_cache"]]


def test_builds_that_were_timed_before_ctrl_c_are_kept_until_all_are_timed(taken, monkeypatch):
    records, done, answer = [entrant("full_gpu"), entrant("freq_cache")], [], FakeWorker.answer

    def interrupted(self, limits):
        if self._scene.asked.count(("Build", "freq_cache")) == 2 and isinstance(self._request, RunSteps):
            raise KeyboardInterrupt
        return answer(self, limits)

    monkeypatch.setattr(FakeWorker, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for record in taken(records)[0]:
            done.append(record)  # noqa: PERF402 - kept although the generator raises
    assert [record.turns.system_s for record in done] == [((1.0,) * 3,), ((2.0,) * 3,)]
    assert [record.turns.embedding_s for record in done] == [((1.0,) * 3,), ((2.0,) * 3,)]
    assert all(record.lacks_turns for record in done)
    monkeypatch.setattr(FakeWorker, "answer", answer)
    given, scene = taken(done)
    assert [record.lacks_turns for record in given] == [False, False]
    assert scene.asked.count(("Build", "freq_cache")) == 2


def test_system_that_falls_when_all_take_turns_again_has_no_times_of_before(taken):
    records = [entrant("full_gpu"), entrant("freq_cache")]
    before = list(taken(records)[0])
    given, _ = taken([*before, entrant("reference")], falls={("freq_cache", 4), ("freq_cache", 1)})
    found = {record.cell.system: record for record in given}
    assert (found["freq_cache"].status, found["freq_cache"].turns) == (Status.CRASHED, None)
    assert found["reference"].turns.contest == found["full_gpu"].turns.contest != before[0].turns.contest


def test_what_disturbed_a_group_is_in_its_records(taken, monkeypatch):
    seen = QuietMachine.seen.model_copy(update={"others_cpu_share": 0.4})
    monkeypatch.setattr(QuietMachine, "seen", seen)
    sentence = "other processes took 40% of the CPUs while turns were taken (load 0.5 at the start)"
    found = list(taken([entrant("full_gpu"), entrant("freq_cache")])[0])
    assert [(one.conditions, one.disturbed) for one in found] == [(seen, (sentence,))] * 2


def test_without_a_baseline_there_is_nothing_to_compare_with(timed):
    _, times = timed(entrant("reference"), entrant("freq_cache"))
    assert {(one.baseline, one.baseline_s, one.losses) for one in times.values()} == {(None, None, "not compared")}


@pytest.mark.parametrize(("shares_process", "falls"), [(False, ()), (True, {("freq_cache", 4)})])
def test_system_that_patches_a_library_or_ended_the_shared_process_has_one_of_its_own(timed, shares_process, falls):
    records = [entrant("full_gpu"), entrant("freq_cache", shares_process=shares_process), entrant("reference")]
    scene, times = timed(*records, falls=falls)
    assert scene.hosts[-2:] == [["full_gpu", REPEAT, "reference"], ["freq_cache"]]
    ways = {system: one.way for system, one in times.items()}
    assert ways == {"full_gpu": "one process", "reference": "one process", "freq_cache": "own process"}


@pytest.mark.parametrize(
    ("falls", "left"),
    [({("freq_cache", 4), ("freq_cache", 1)}, "full_gpu"), ({("full_gpu", 4), ("full_gpu", 1)}, None)],
)
def test_system_that_ends_its_own_process_too_is_left_out(timed, falls, left):
    _, times = timed(entrant("full_gpu"), entrant("freq_cache"), entrant("reference"), falls=falls)
    fell = next(iter(falls))[0]
    assert (times[fell].status, times[fell].reason) == (Status.CRASHED, f"{fell} fell")
    assert times["reference"].baseline == left


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_system_that_dies_in_a_real_process_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "MachineMonitor", QuietMachine)
    records = [entrant("full_gpu"), entrant(fake("Segfaults"))]
    baseline, fell = take_turns(records, tmp_path / "turns.log", display=Notebook(), timeout_s=60)
    assert (baseline.cell.system, baseline.turns.way) == ("full_gpu", "one process")
    assert (fell.status, fell.phase, fell.turns) == (Status.CRASHED, "turns", None)
    assert fell.reason.startswith("the worker died of SIGSEGV")
    assert fell.measurement is not None


def test_loss_that_differs_where_arithmetic_is_the_same_is_a_wrong_answer(timed, monkeypatch):
    answer = FakeWorker.answer

    def other_bits(self, limits):
        found = answer(self, limits)
        wrong = isinstance(found, StepTiming) and self._request.name == "freq_cache"
        return found.model_copy(update={"loss": "0x1.0000000000001p-1"}) if wrong else found

    monkeypatch.setattr(FakeWorker, "answer", other_bits)
    _, times = timed(entrant("full_gpu"), entrant("freq_cache"))
    assert (times["full_gpu"].losses, times["freq_cache"].status) == ("equal", Status.WRONG_ANSWER)
    assert times["freq_cache"].reason.startswith("at the end of turn 1 its loss differs from full_gpu's")
    rounded = Verification(checks=(EXACT.checks[0].model_copy(update={"max_difference": 1e-9, "tolerance": 1e-6}),))
    loose = entrant("freq_cache").model_copy(update={"verification": rounded})
    assert timed(entrant("full_gpu"), loose)[1]["freq_cache"].losses == "not compared"
