"""The command line: what it runs, and how it ends."""

import fcntl

import pytest

from suite.records.record import Status
from suite.records.store import RecordStore, StoreError
from suite.run import runner
from suite.run.console import command as cli
from suite.run.turns import timing
from suite.run.worker import CellResult
from tests.unit.suite.run.console.command_scenes import TINY, call

pytestmark = pytest.mark.usefixtures("plain_output")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_systems_end_to_end_then_the_table_again_from_the_records(tmp_path, monkeypatch):
    environment = cli.capture(threads=1)  # once: sources may be edited while tests run
    monkeypatch.setattr(cli, "capture", lambda **_: environment)
    monkeypatch.setattr(timing, "interference", lambda *_, **__: ())  # other tests run beside this one
    words = ["--systems", "reference,full_gpu", "--workloads", "avazu", "--out", tmp_path, *TINY]
    first = call(*words)
    assert first.exit_code == 0, first.output
    said = first.stdout.partition("finished in")[0]
    assert [said.count(": started"), said.count(": ok in 0:"), said.count(": done in 0:")] == [3, 2, 1]
    for name in ("reference x avazu", "full_gpu x avazu", "turns of 2 systems x avazu"):
        assert f"{name}: started" in said

    records, problems = RecordStore(tmp_path).load_all()
    assert problems == []
    found = {record.cell.system: record for record in records}
    assert {system: record.status for system, record in found.items()} == {"reference": "ok", "full_gpu": "ok"}
    assert all(record.verification.passed and record.environment.machine for record in records)
    aurocs = {record.measurement.quality.auroc for record in records}
    assert len(aurocs) == 1, "the same model, stream and arithmetic give the same quality"
    for record in records:
        turns = record.turns
        assert (turns.way, turns.losses, turns.baseline) == ("one process", "equal", "full_gpu")
        builds = [[len(build) for build in series] for series in (turns.system_s, turns.baseline_s)]
        assert builds == [[3] * record.cell.builds] * 2  # half a design in each of two
        assert min(second for build in (*turns.system_s, *turns.baseline_s) for second in build) > 0
    assert found["full_gpu"].turns.contest == found["reference"].turns.contest
    assert found["full_gpu"].turns.system_s == found["reference"].turns.baseline_s

    second = call(*words)
    assert second.exit_code == 0, second.output
    assert "2 cells, 2 of them done already" in second.stdout
    assert "started" not in second.stdout
    for text in ("Avazu: synthetic data, scale smoke, sgd", "full_gpu", "reference", f"{aurocs.pop():.3f}"):
        assert text in second.stdout
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".md", ".csv"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_dataset_end_to_end_trains_one_whole_epoch_and_says_so(tmp_path, prepared):
    result = call(
        "--data-dir", prepared, "--systems", "freq_cache", "--scale", "smoke", "--device", "cpu", "--embedding-dim", 4,
        "--cache-ratio", "0.9", "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "criteo_kaggle: batch 16 instead of 256, because there are 168 training rows" in result.stdout
    assert "criteo_kaggle: 10 steps, one whole epoch, instead of" in result.stdout
    (record,) = RecordStore(tmp_path).load_all()[0]
    assert record.status is Status.OK
    assert record.measurement.epoch_samples >= 160
    assert record.measurement.quality.samples == 14
    assert record.measurement.quality.best_auroc is None
    assert (record.cell.data, record.cell.steps * record.cell.batch_size) == ("real", 160)
    assert record.cell.data_digest


def answering(monkeypatch, **outcomes):
    def answer(request, **_):
        status = outcomes.get(request.cell.system, Status.UNSUPPORTED)
        return CellResult(status=status, reason="because", phase="support", wall_s=1.0)

    monkeypatch.setattr(runner, "run_in_process", answer)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_exit_code_follows_how_the_cells_ended_and_the_table_is_printed_all_the_same(tmp_path, monkeypatch, status):
    answering(monkeypatch, reference=status)
    result = call("--systems", "reference", "--workloads", "avazu", "--out", tmp_path, *TINY)
    assert result.exit_code == {Status.UNSUPPORTED: 0, Status.INTERRUPTED: 130}.get(status, 1)
    table = result.stdout.partition("finished in")[2]
    assert "reference" in table
    assert str(status) in table
    assert (tmp_path / "tables" / "comparison.md").exists()


def test_directory_in_use_by_another_run_is_a_sentence_and_exit_code_1(tmp_path, monkeypatch):
    answering(monkeypatch)
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = call("--systems", "reference", "--workloads", "avazu", "--out", tmp_path, *TINY)
    assert result.exit_code == 1
    assert "another run is writing to" in result.stderr
    assert "Traceback" not in result.output


def test_full_disk_still_prints_the_table_and_ends_with_a_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise StoreError("cannot write a file: No space left on device; make room")

    answering(monkeypatch)
    monkeypatch.setattr("suite.records.store.write_atomically", full)
    monkeypatch.setattr(runner, "write_sheets", full)
    result = call("--systems", "reference", "--workloads", "avazu", "--out", tmp_path, *TINY)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "warning: cannot write" in result.stdout
    assert "the cell is in this run's table but will run again" in result.stdout
    assert "unsupported" in result.stdout
    assert "No space left on device; make room" in result.stderr
