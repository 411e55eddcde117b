"""What a run does when it is interrupted, when drives are full, and when others have what it needs."""

import os
import subprocess
import sys
import tempfile

import pytest

from suite.records.record import Status
from suite.records.store import RecordStore, StoreError
from suite.run import runner as module
from suite.run.locks import Locked, cell_directory, one_run_on
from suite.run.runner import Choice, Runner
from tests.unit.suite.fabricate import environment
from tests.unit.suite.run.runner_scenes import CELLS, Notebook, statuses


def test_ctrl_c_keeps_finished_cells_records_the_interrupted_one_and_starts_no_more(run, tmp_path):
    stopped = run(full_gpu=Status.INTERRUPTED)
    assert stopped.workers.started == ["reference", "full_gpu"]
    assert statuses(stopped) == {"reference": "ok", "full_gpu": "interrupted"}
    assert stopped.code == 130
    assert "the same command goes on from here" in stopped.display.warnings[-1]
    stored = {record.cell.system: record.status.value for record in RecordStore(tmp_path).load_all()[0]}
    assert stored == {"reference": "ok", "full_gpu": "interrupted"}
    assert run().workers.started == ["full_gpu", "freq_cache"]


def test_second_run_on_the_same_device_is_refused_and_told_who_has_it(run):
    with one_run_on("cpu"):
        with pytest.raises(Locked, match=r"using the device cpu \(`fuser .*cpu.lock` names its process\): wait for"):
            run()
        with one_run_on("cuda-GPU-1"):  # another device is another matter
            pass
    assert len(run().workers.started) == 3
    with one_run_on("cpu"):  # nothing is left to run, so no device is needed
        assert run().workers.started == []


def test_device_is_held_where_turns_alone_are_left_to_take(run, monkeypatch):
    def interrupt(records, log, **_):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, "take_turns", interrupt)
        assert run().code == 130
    with one_run_on("cpu"), pytest.raises(Locked, match="using the device cpu"):
        run()


def test_interrupted_cell_of_a_fresh_run_keeps_what_was_measured_before(run):
    before = run().records
    again = run(Choice.FRESH, full_gpu=Status.INTERRUPTED)
    assert again.code == 130
    assert again.records[1] == before[1]
    assert run().workers.started == []


def test_next_run_removes_the_temporary_files_of_killed_cells_and_those_of_no_others(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = f"import os, tempfile; tempfile.tempdir = {str(tmp_path)!r}; from suite.run.locks import *\n"
    script += "with cell_directory() as folder: (folder / 'rows').write_text('1'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], check=False)
    (left,) = tmp_path.glob("embedding-offload-bench-*/*-*")
    assert (left / "rows").is_file()
    with cell_directory() as living:
        ran = run()
        assert living.is_dir()
    assert not left.exists()
    assert not living.exists()
    assert ran.display.notes == [f"removed {left}: temporary files of a cell that was killed"]


def test_directory_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    runner = Runner(CELLS, out=tmp_path / "file", environment=environment(), choice=Choice.RESUME, timeout_s=None)
    with pytest.raises(StoreError, match=r"cannot write to .*file: .*choose another directory with --out"):
        runner.run(Notebook())


def test_run_whose_temporary_files_would_be_behind_a_link_does_not_begin_and_cleans_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = tmp_path / "data"
    (data / "12-abcdefgh").mkdir(parents=True)
    (tmp_path / f"embedding-offload-bench-{os.getuid()}").symlink_to(data, target_is_directory=True)
    with pytest.raises(StoreError, match=r"files in .*: it is not a folder of this user alone; remove .* TMPDIR"):
        run()
    with pytest.raises(PermissionError, match="it is not a folder of this user alone"), cell_directory():
        pass
    assert not (tmp_path / "records").exists()
    assert [path.name for path in data.iterdir()] == ["12-abcdefgh"]
