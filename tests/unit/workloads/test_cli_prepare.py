import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workloads.__main__ import app

ROW = "\t".join(["1", *map(str, range(13)), *["c0ffee"] * 26]) + "\n"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def days(tmp_path):
    paths = [tmp_path / f"day_{number}" for number in range(3)]
    for path in paths:
        path.write_text(ROW * 4)
    return paths


def test_prepare_then_verify_from_the_command_line(tmp_path, days):
    result = run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "12 rows" in result.stdout
    assert "files taken in the order given: day_0, day_1, day_2" in result.stdout
    assert "rows/s" in result.stdout
    result = run("verify", tmp_path / "out" / "criteo_1tb")
    assert result.exit_code == 0, result.output
    assert "10 files are as prepared" in result.stdout


def test_inputs_may_be_listed_or_repeated_and_keep_their_order(tmp_path, days):
    mixed = ["--input", days[0], days[1], "--min-count", 2, "--input", days[2]]
    listed = run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / "one", "--min-count", 2)
    repeated = run("prepare", "criteo_1tb", *mixed, "--out", tmp_path / "two")
    assert listed.exit_code == repeated.exit_code == 0
    manifests = [(tmp_path / out / "criteo_1tb" / "manifest.json").read_bytes() for out in ("one", "two")]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["criteo_1tbb", "--input", "day_0"], "unknown dataset 'criteo_1tbb'; did you mean criteo_1tb"),
        (["criteo_1tb", "--input", "day_0", "absent"], "absent: no such file"),
        (["criteo_1tb", "--input", "day_0", "bad"], "bad:2: column I1: found 'x', expected an integer"),
        (["criteo_1tb", "--input", "day_0", "--min-count", "0"], "--min-count must be at least 1"),
        (["avazu", "--input", "day_0"], "make this the first line: id,click,hour"),
    ],
)
def test_user_errors_exit_2_with_a_sentence_and_no_traceback(tmp_path, days, monkeypatch, words, message):
    (tmp_path / "bad").write_text(ROW + ROW.replace("1\t0\t", "1\tx\t", 1))
    monkeypatch.chdir(tmp_path)
    result = run("prepare", *words, "--out", "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(Path("out").glob("*"))


def test_verify_tells_what_changed(tmp_path, days):
    run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / "out")
    path = tmp_path / "out" / "criteo_1tb" / "train_labels.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    result = run("verify", path.parent)
    assert result.exit_code == 2
    assert "train_labels.npy changed since preparation" in result.stderr


def test_interrupted_process_leaves_the_previous_output_and_no_temporary_directory(tmp_path, days):
    out = tmp_path / "out"
    assert run("prepare", "criteo_1tb", "--input", *days, "--out", out).exit_code == 0
    before = (out / "criteo_1tb" / "manifest.json").read_bytes()
    os.mkfifo(tmp_path / "endless")  # reading it waits, so that the signal arrives in the middle
    words = ["prepare", "criteo_1tb", "--input", days[0], tmp_path / "endless", "--out", out, "--overwrite"]
    process = subprocess.Popen([sys.executable, "-m", "workloads", *map(str, words)], cwd=Path(__file__).parents[3])
    while not list(out.glob(".criteo_1tb.partial-*/staging")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    assert [path.name for path in out.iterdir()] == ["criteo_1tb"]
    assert (out / "criteo_1tb" / "manifest.json").read_bytes() == before
