import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prepare_scenes import content, kaggle_file, kaggle_row
from typer.testing import CliRunner

from workloads.__main__ import app
from workloads.prepare.workspace import work_folder

ROW = kaggle_row(label=1, integers=range(13), ids=["c0ffee"] * 26)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def days(tmp_path):
    return [
        kaggle_file(tmp_path / f"day_{number}", [kaggle_row(label=1, integers=(number, *[0] * 12)), *[ROW] * 3])
        for number in range(3)
    ]


def test_prepare_then_verify_from_the_command_line(tmp_path, days):
    result = run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "12 rows" in result.stdout
    assert "files taken in the order given: day_0, day_1, day_2" in result.stdout
    assert "rows/s" in result.stdout
    result = run("verify", tmp_path / "out" / "criteo_1tb")
    assert result.exit_code == 0, result.output
    assert "10 files are as prepared" in result.stdout
    path = tmp_path / "out" / "criteo_1tb" / "train_labels.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    result = run("verify", path.parent)
    assert result.exit_code == 2
    assert "train_labels.npy changed since preparation. Make the data again: python -m workloads" in result.stderr


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
        (["criteo_1tbb", "--input", "day_0"], "unknown dataset 'criteo_1tbb' (known: criteo_kaggle, avazu"),
        (["criteo_1tb", "--input", "day_0", "absent"], "absent: no such file"),
        (["criteo_1tb", "--input", "day_0", "bad"], "bad:2: column I1: found 'x', expected an integer"),
        (["--input", "day_0"], "name a dataset (criteo_kaggle, avazu, criteo_1tb) or give --schema FILE"),
        (["avazu", "--schema", "bad", "--input", "day_0"], "name a dataset (criteo_kaggle, avazu, criteo_1tb) or give"),
        (["criteo_1tb", "--input", "day_0", "--memory", "1MB"], "--memory must be at least 512MiB"),
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
    assert not Path("out", words[0]).exists()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_process_leaves_the_previous_output_and_the_next_one_goes_on(tmp_path, days, sent):
    out, expected = tmp_path / "out", tmp_path / "expected"
    assert run("prepare", "criteo_1tb", "--input", *days, "--out", out).exit_code == 0
    before = content(out)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(ROW * 5 + ROW.replace("c0ffee", "7ea") * 4)
    os.mkfifo(second)  # reading it waits, so that the signal arrives once the first file is done
    words = ["prepare", "criteo_1tb", "--input", first, second, "--out", out, "--overwrite"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads", *map(str, words)],
        cwd=Path(__file__).parents[4],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with second.open("wb") as pipe:  # opens once the process reads from the other end
        pipe.write(ROW.encode())
        pipe.flush()
        process.send_signal(sent)
        assert process.wait(timeout=60) != 0
    assert content(out / "criteo_1tb") == {Path(name).name: data for name, data in before.items()}
    assert {path.name for path in out.iterdir()} == {"criteo_1tb", ".criteo_1tb.partial-work"}

    second.unlink()
    second.write_text(ROW * 3)
    assert run("prepare", "criteo_1tb", "--input", first, second, "--out", expected).exit_code == 0
    times = first.stat()
    first.write_text(first.read_text().replace("7ea", "7ee"))  # would be seen if the file were read again
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run(*words).exit_code == 0
    assert content(out) == content(expected)


@pytest.mark.slow
def test_input_changed_since_a_run_was_cut_short_is_read_again_and_restart_forgets_all(tmp_path, days):
    (tmp_path / "bad").write_text("junk\n")
    words = ["prepare", "criteo_1tb", "--out", tmp_path / "out", "--input"]
    for change in ("7ea", "7ee"):
        days[0].write_text(ROW.replace("c0ffee", change) * 4)
        assert run(*words, *days, tmp_path / "bad").exit_code == 2
        assert run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / change).exit_code == 0
    assert run(*words, *days).exit_code == 0
    assert content(tmp_path / "out") == content(tmp_path / "7ee")
    # what is staged is damaged: used by the next run, unless told otherwise
    assert run(*words, *days, tmp_path / "bad", "--overwrite").exit_code == 2
    for path in (tmp_path / "out").glob(".criteo_1tb.partial-work/staged-*/data"):
        path.write_bytes(bytes(path.stat().st_size))
    assert run(*words, *days, "--overwrite", "--restart").exit_code == 0
    assert content(tmp_path / "out") == content(tmp_path / "7ee")


def test_two_runs_at_once_are_refused(tmp_path, days):
    with work_folder(tmp_path / ".criteo_1tb.partial-work", restart=False, target=tmp_path / "criteo_1tb"):
        result = run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path)
    assert result.exit_code == 2
    assert "another preparation works in" in result.stderr


def test_names_of_columns_send_no_control_codes_to_the_terminal(tmp_path):
    (tmp_path / "rows").write_text("\x1b[31mid,click\n1,0\n")
    result = run("prepare", "avazu", "--input", tmp_path / "rows", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr and "\\x1b[31mid" in result.stderr


def test_what_a_killed_run_left_beside_its_output_is_named(tmp_path, days):
    (tmp_path / "out" / "criteo_1tb").mkdir(parents=True)
    left = tmp_path / "out" / ".criteo_1tb.partial-work.gone"
    left.mkdir()
    result = run("prepare", "criteo_1tb", "--input", *days, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{left} is left of a run that was killed: delete it" in " ".join(result.stderr.split())
