"""Which cells run, what is kept of them, and how a run ends, without a single worker."""

from datetime import UTC, datetime

import pytest

from suite.records.environment import VIRTUAL_DEVICE
from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.records.store import RecordStore, to_text
from suite.run import runner as module
from suite.run.runner import Choice, Runner
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import environment, measurement
from tests.unit.suite.run.runner_scenes import CELLS, TIMES, Notebook, Turned, statuses

# Resuming


def test_second_run_starts_no_process_and_has_the_same_records(run):
    first, second = run(), run()
    assert first.workers.started == ["reference", "full_gpu", "freq_cache"]
    assert second.workers.started == []
    assert second.records == first.records
    assert (first.display.opening, second.display.opening) == ((3, 0), (3, 3))
    assert first.code == second.code == 0


def test_failed_cell_is_done_too_unless_failures_are_asked_for_and_one_that_never_ran_is_none(run):
    none = run(Choice.ONLY_FAILED)
    assert (none.workers.started, none.display.opening, none.code) == ([], (3, 0), 1)
    run(reference=Status.UNSUPPORTED, full_gpu=Status.UNAVAILABLE, freq_cache=Status.CRASHED)
    assert run().workers.started == []
    again = run(Choice.ONLY_FAILED)
    assert again.workers.started == ["full_gpu", "freq_cache"]
    assert statuses(again) == {"reference": "unsupported", "full_gpu": "ok", "freq_cache": "ok"}
    assert run(Choice.ONLY_FAILED).workers.started == []


def test_fresh_runs_everything_and_replaces_the_records(run, tmp_path):
    run(full_gpu=Status.CRASHED)
    again = run(Choice.FRESH)
    assert again.workers.started == ["reference", "full_gpu", "freq_cache"]
    assert len(list((tmp_path / "records").glob("*.json"))) == 3
    assert statuses(run()) == {"reference": "ok", "full_gpu": "ok", "freq_cache": "ok"}


def test_cell_is_done_on_the_same_code_versions_and_machine_with_the_same_setting_and_round(run, tmp_path):
    one = CELLS[0]
    run(cells=[one])
    for change in (
        {"code": "other"},
        {"machine": "another"},
        {"packages": {"torch": "2.14.0", "torchrec": "1.8.0"}},
        {"packages": {"torch": "2.13.0"}},
        {"python": "3.12.0"},
        {"threads": 1},
    ):
        assert run(cells=CELLS[:1], where=environment(gpu=False, **change)).workers.started == ["reference"], change
    for change in ({"lr": 0.5}, {"round": 1}, {"seed": 1}):
        assert run(cells=[one.model_copy(update=change)]).workers.started == ["reference"], change
    assert run(cells=[one], where=environment(gpu=False, commit="f" * 16, dirty=True)).workers.started == []
    assert run(cells=[one.model_copy(update={"data_dir": str(tmp_path)})]).workers.started == []


def test_change_of_ones_own_system_makes_its_cells_undone_and_no_others(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "one_of_my_own.py"
    file.write_text("x = 1")
    cells = [CELLS[0], tiny_cell("one_of_my_own:System"), tiny_cell("found_by_the_worker_alone:System")]
    first = run(cells=cells)
    assert [record.environment.system_code is None for record in first.records] == [True, False, True]
    assert run(cells=cells).workers.started == []
    file.write_text("x = 2")
    assert run(cells=cells).workers.started == ["one_of_my_own:System"]


def test_record_under_the_key_of_another_cell_is_no_record_of_it(run, tmp_path):
    """Its cell would go to the process that takes turns, which imports what the cell names."""
    first = run()
    evil = first.records[1].model_copy(update={"cell": tiny_cell("evil.module:System")})
    path = RecordStore(tmp_path).path(first.records[1])
    path.write_text(to_text(evil))
    again = run()
    assert again.workers.started == ["full_gpu"]
    (warning,) = again.display.warnings
    assert warning.startswith(f"{path}: key: found ")
    assert again.records[1].cell == CELLS[1]
    assert all("evil.module:System" not in session for session in Turned.sessions)


def test_where_data_lie_is_taken_from_the_plan_and_never_from_a_record(run, tmp_path, monkeypatch):
    cells = [cell.model_copy(update={"data": "real", "data_dir": "here", "data_digest": "d"}) for cell in CELLS]
    monkeypatch.setattr(module, "take_turns", lambda records, log, **_: iter(()))
    for record in run(cells=cells).records:
        moved = record.cell.model_copy(update={"data_dir": "/somewhere/else"})
        RecordStore(tmp_path).write(record.model_copy(update={"cell": moved}))
    seen = []
    monkeypatch.setattr(module, "take_turns", lambda records, log, **_: iter(seen.extend(records) or ()))
    again = Runner(cells, out=tmp_path, environment=environment(gpu=False), choice=Choice.RESUME, timeout_s=None)
    again.run(Notebook())
    assert [record.cell for record in seen] == cells


@pytest.mark.parametrize("damage", [b"{", b'{"schema_version": 1}'])
def test_damaged_record_costs_its_own_cell_alone_and_is_told(run, tmp_path, damage):
    run()
    (path,) = (tmp_path / "records").glob("*full_gpu*.json")
    path.write_bytes(damage)
    again = run()
    assert again.workers.started == ["full_gpu"]
    assert [str(path) in warning for warning in again.display.warnings] == [True]
    assert again.code == 0
    assert run().workers.started == []


def test_state_of_a_cell_before_the_run(run, tmp_path):
    run(cells=CELLS[:1])
    for choice, other in ((Choice.RESUME, "to run"), (Choice.ONLY_FAILED, "skipped")):
        later = Runner(CELLS, out=tmp_path, environment=environment(gpu=False), choice=choice, timeout_s=None)
        assert [later.state(cell) for cell in CELLS] == ["done", other, other]


# Turns


def test_systems_of_a_setting_take_turns_once_all_have_run_and_their_records_keep_the_times(run, tmp_path):
    ran = run(full_gpu=Status.CRASHED)
    assert Turned.sessions == [["reference", "freq_cache"]]
    assert [record.turns for record in ran.records] == [TIMES, None, TIMES]
    stored = {record.cell.system: record.turns for record in RecordStore(tmp_path).load_all()[0]}
    assert stored == {"reference": TIMES, "full_gpu": None, "freq_cache": TIMES}


def test_all_of_a_setting_take_turns_again_when_one_joins_and_none_where_all_have_times(run):
    run(cells=CELLS[:2])
    run()
    run()
    assert Turned.sessions == [["reference", "full_gpu"], ["reference", "full_gpu", "freq_cache"]]


def test_system_whose_rows_differ_after_training_is_a_wrong_answer_that_takes_no_turns(run):
    ran = run(weights={"full_gpu": 1.5})
    assert statuses(ran) == {"reference": "ok", "full_gpu": "wrong_answer", "freq_cache": "ok"}
    assert Turned.sessions == [["reference", "freq_cache"]]
    assert (ran.code, ran.records[1].phase, ran.records[1].measurement) == (1, "rows", None)
    assert ran.display.warnings[0].startswith("full_gpu x avazu: wrong_answer: row 0 of t, early: differs by ")
    again = run(Choice.ONLY_FAILED)
    assert again.workers.started == ["full_gpu"]
    assert statuses(again)["full_gpu"] == "ok"


def test_cell_that_joins_later_is_compared_with_those_that_are_done(run):
    run(cells=CELLS[:2])
    ran = run(weights={"freq_cache": 1.5})
    assert statuses(ran) == {"reference": "ok", "full_gpu": "ok", "freq_cache": "wrong_answer"}


def test_rounds_and_settings_take_turns_apart(run):
    run(cells=[*CELLS[:2], *(cell.model_copy(update={"round": 1}) for cell in CELLS[:2]), tiny_cell(lr=0.5)])
    assert Turned.sessions == [["reference", "full_gpu"]] * 2 + [["reference"]]


def test_system_that_fails_in_its_turns_has_failed_and_keeps_what_its_cell_measured(run, monkeypatch):
    def crash(records, log, **_):
        return [
            r.model_copy(update={"status": Status.CRASHED, "reason": "it fell", "phase": "turns"}) for r in records[1:]
        ]

    monkeypatch.setattr(module, "take_turns", crash)
    ran = run(cells=CELLS[:2])
    assert (ran.records[1].status, ran.records[1].measurement is None, ran.code) == (Status.CRASHED, False, 1)
    assert "full_gpu x avazu failed in its turns: crashed: it fell (log: " in ran.display.warnings[0]


# What is kept


def test_record_says_how_and_in_which_phase_a_cell_failed(run):
    ran = run(reference=Status.TIMEOUT)
    record = ran.records[0]
    assert (record.status, record.reason, record.phase, record.wall_s) == (Status.TIMEOUT, "because", "train", 2.0)
    assert record.environment == environment(gpu=False)
    assert ran.records[1].phase == ""
    assert ran.records[1].measurement == measurement(CELLS[1])
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_newest_record_is_the_one_written_last_although_the_clock_stepped_back(run, monkeypatch):
    clock = iter(datetime(2026, 1, day, tzinfo=UTC) for day in (3, 2, 1))
    monkeypatch.setattr(module, "datetime", type("Clock", (), {"now": lambda zone: next(clock)}))
    one = CELLS[:1]
    for code in ("first", "second", "third"):
        ran = run(cells=one, where=environment(gpu=False, code=code))
    found = RecordStore(ran.out).load_all()[0]
    assert [record.environment.code for record in sorted(found, key=lambda record: record.order)] == [
        "first", "second", "third",
    ]  # fmt: skip
    assert group_records(found)[0].environment.code == "third"
    assert max(found, key=lambda record: record.started_at).environment.code == "first"


def test_log_is_named_where_the_process_went_wrong_and_not_elsewhere(run, tmp_path):
    ran = run(reference=Status.CRASHED, full_gpu=Status.UNSUPPORTED)
    reasons = {label: reason for label, _, _, reason in ran.display.finished}
    assert reasons["full_gpu x avazu"] == "because"
    named = reasons["reference x avazu"].removeprefix("because (log: ").removesuffix(")")
    assert (tmp_path / "logs" / f"{ran.records[0].key}.log").samefile(named)


def test_finished_cell_is_summarised_and_had_the_limits_of_its_scale_unless_a_timeout_is_given(run):
    ran = run()
    assert ran.display.finished[0][2] == "AUROC 0.7911, hit rate 0.950"
    limits = ran.workers.limits[0]
    assert (limits.wall_s, limits.stall_s) == (120, 60)
    assert limits.host_bytes > 0
    assert run(Choice.FRESH, timeout_s=7.5).workers.limits[0].wall_s == 7.5


# A virtual device


def test_on_a_virtual_device_no_turns_are_taken_and_nothing_timed_is_kept(run, monkeypatch):
    monkeypatch.setattr(Turned, "sessions", [])
    cells = [cell.model_copy(update={"device": "cuda"}) for cell in CELLS]
    where = environment().model_copy(update={"gpu": VIRTUAL_DEVICE})
    first = run(cells=cells, where=where)
    assert statuses(first) == dict.fromkeys(("reference", "full_gpu", "freq_cache"), "ok")
    for record in first.records:
        assert record.untimed() == record
        assert record.measurement.memory.device_allocated_bytes is not None
    assert run(cells=cells, where=where).records == first.records
    assert not Turned.sessions
