"""The command line: what it lists, plans, refuses and runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.records.environment import Gpu
from suite.run import runner
from suite.run.console import options
from systems.registry import ALL, ALL_ON_RANKS, CONTROLS, DISTINCT, SYSTEMS
from tests.unit.suite.run.console.command_scenes import TINY, call
from workloads.schema import DATASETS, SCHEMAS

pytestmark = pytest.mark.usefixtures("plain_output")


def refused(*words):
    """The sentence that a call is refused with: exit code 2, nothing on standard output, no traceback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_in_process", lambda *_, **__: pytest.fail("a process was started"))
        result = call("--out", "must/not/be/made", *words)
    assert result.exit_code == 2, result.output
    assert not Path("must").exists()
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


# Listing and planning


def test_list_names_every_system_with_its_variants_every_workload_and_scale():
    result = call("--list")
    assert result.exit_code == 0
    for name in (*SYSTEMS, *CONTROLS, *SCHEMAS, "smoke", "small", "full", "module:Class"):
        assert name in result.stdout
    assert "fbgemm_uvm_caching [policy=" in result.stdout


def test_list_says_which_system_is_unavailable(monkeypatch):
    monkeypatch.setitem(SYSTEMS, "freq_cache", "tests.faults.needy:System")
    result = call("--list")
    assert result.exit_code == 0
    assert "unavailable: No module named 'no_such_package_anywhere'" in result.stdout


@pytest.mark.usefixtures("no_workers")
def test_dry_run_shows_every_cell_with_its_setting_and_writes_nothing(tmp_path):
    words = ["--systems", "reference,full_gpu", "--workloads", "avazu", "--rounds", "2", "--dry-run"]
    result = call(*words, "--out", tmp_path / "o", *TINY)
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("to run")]
    assert len(lines) == 4
    assert all(
        "x avazu" in line and "smoke on cpu, sgd lr 1, batch 32, dim 4, ratio 0.1, 5 steps" in line for line in lines
    )
    assert sum("#2" in line for line in lines) == 2
    for systems, entries in ([], DISTINCT), (["--systems", "all"], ALL):
        every = call(*systems, "--device-budget", "1MiB", "--dry-run", "--out", tmp_path, *TINY)
        assert every.stdout.count("to run") == every.stdout.count("1,048,576 B") == len(entries) * len(DATASETS)
        assert ("--systems all takes them too" in every.stdout) == (not systems)
    assert not (tmp_path / "o").exists()


def test_all_on_ranks_is_what_ranks_can_share(tmp_path):
    words = ["--systems", "all,full_gpu", "--workloads", "avazu", "--ranks", "2", "--dry-run", "--out", tmp_path]
    result = call(*words, *TINY)
    assert all(f"to run    {name} x avazu: " in result.stdout for name in ALL_ON_RANKS)
    assert result.stdout.count(" on 2 ranks") == len(ALL_ON_RANKS)


# Refusing


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--systems", "freq_cach"], "unknown system 'freq_cach': did you mean freq_cache"),
        (["--systems", "fbgemm_uvm_caching[polcy=lfu]"], "has no parameter 'polcy'; it takes: policy"),
        (["--systems", "tests.faults.absent:System"], "cannot import tests.faults.absent:System: ModuleNotFoundError"),
        (["--systems", "tests.faults.broken:System"], "RuntimeError: no licence file found: set FROB_LICENCE"),
        (["--systems", "full_gpu, disk"], "give --tier disk"),
        (["--systems", ""], "no system named: give all or distinct or approximate or disk, or some of reference"),
        (["--workloads", "criteo_kagle"], "unknown workload 'criteo_kagle': did you mean criteo_kaggle"),
        (["--embedding-dim", "30"], "--embedding-dim: 30 is out of range, it must be a multiple of 4"),
        (["--device-budget", "much"], "--device-budget: 'much' is not a size: write 1.5GiB"),
        (["--cache-ratio", "0.1", "--device-budget", "1GiB"], "--cache-ratio and --device-budget exclude each other"),
        (["--cache-ratio", "1.5"], "--cache-ratio: 1.5 is out of range"),
        (["--frequency-prefix", "nan"], "--frequency-prefix: nan is out of range, it must be above 0 and at most 1"),
        (["--batch-size", "0"], "--batch-size: 0 is out of range, it must be at least 1"),
        (["--rounds", "0"], "--rounds: 0 is out of range, it must be from 1 to 1,000"),
        (["--rounds", "999999999999"], "--rounds: 999999999999 is out of range, it must be from 1 to 1,000"),
        (["--lr", "nan"], "--lr: nan is out of range, it must be above 0 and below 3e38"),
        (["--lr", "inf"], "--lr: inf is out of range, it must be above 0 and below 3e38"),
        (["--seed", str(2**63)], f"--seed: {2**63} is out of range, it must be from 0 to 2**63 - 1"),
        (["--tf32"], "--tf32 is of NVIDIA devices, and a CPU computes here: leave it out, or give --device cuda"),
        (["--steps", "3"], "--steps: 3 is out of range, it must be at least 4"),
        (["--ranks", "3"], "--ranks: 3 is out of range, it must be a power of two, 64 at most"),
        (["--ranks", "64"], "64 ranks cannot share a batch of 32"),
        (["--ranks", "2", "--device-budget", "1MiB"], "--ranks takes a --cache-ratio"),
        (["--ranks", "2", "--tier", "disk"], "--ranks takes a --cache-ratio"),
        (["--ranks", "2", "--systems", "hot_split"], "cannot be spread over ranks: with --ranks give full_gpu"),
        (["--systems", "full_gpu[sharding=row_wise]"], "full_gpu has no parameter 'sharding'"),
        (["--host-budget", "1GiB"], "--host-budget is for rows on a drive: give --tier disk"),
        (["--tier", "disk", "--cache-ratio", "0.1"], "--tier disk has a --host-budget"),
        (["--tier", "disk", "--device-budget", "1GiB"], "--device-budget is part of every --host-budget"),
        (["--tier", "disk", "--device-budget", "1MiB,2MiB"], "give one size, below all of these"),
        (["--timeout", "nan"], "--timeout: nan is out of range"),
        (["--fresh", "--only-failed"], "--fresh and --only-failed exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_option_exits_2_with_a_sentence(words, sentence):
    settings = TINY if "--steps" not in words and "--embedding-dim" not in words else ["--device", "cpu"]
    assert sentence in refused(*settings, *words)


@pytest.mark.parametrize("words", [[], ["--ranks", "2"]])
def test_launcher_of_several_processes_is_refused(monkeypatch, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "to one process, which starts the ranks" in refused(*TINY, *words)


NO_DEVICE = "no NVIDIA device is visible"


@pytest.mark.parametrize(
    ("gpu", "usable", "told", "refusal"),
    [
        (None, False, f"device: cpu, because {NO_DEVICE}", f"--device cuda: {NO_DEVICE}, or use --device cpu"),
        ("NVIDIA X", False, "device: cpu, because torch", "cannot use the NVIDIA X; run make setup again"),
        ("NVIDIA X", True, "device: cuda (NVIDIA X)", None),
    ],
)
def test_device_is_one_that_torch_can_use_and_else_the_reason_is_told(
    monkeypatch, tmp_path, gpu, usable, told, refusal
):
    monkeypatch.setattr(options, "visible_gpu", lambda: gpu and Gpu(model=gpu))
    monkeypatch.setattr("torch.cuda.is_available", lambda: usable)
    result = call("--systems", "reference", "--workloads", "avazu", "--dry-run", "--out", tmp_path)
    assert told in result.stdout
    assert (" on cuda, " in result.stdout) == usable
    assert ("avazu: scale small, the default without a GPU" in result.stdout) != usable
    assert refusal is None or refusal in refused("--device", "cuda")


def test_package_missing_for_a_variant_of_ours_is_left_to_its_cell(monkeypatch, tmp_path):
    monkeypatch.setitem(SYSTEMS, "fbgemm_uvm_caching", "tests.faults.needy:System")
    result = call(
        "--systems", "fbgemm_uvm_caching[policy=lfu]", "--workloads", "avazu", "--dry-run", "--out", tmp_path, *TINY
    )
    assert result.exit_code == 0
    assert "to run" in result.stdout


# Data directories


def test_data_directory_that_lacks_what_is_asked_for_is_refused_before_anything_runs(tmp_path, prepared):
    absent = refused("--data-dir", tmp_path / "absent", *TINY)
    assert "python -m workloads prepare" in absent
    assert "absent" in absent
    lacking = refused("--data-dir", prepared, "--workloads", "avazu", *TINY)
    assert "holds no avazu, only criteo_kaggle" in lacking
    assert "python -m workloads prepare avazu" in lacking
    damaged = shutil.copytree(prepared, tmp_path / "damaged")
    (damaged / "criteo_kaggle" / "train_ids.npy").write_bytes(b"")
    assert "train_ids.npy cannot be read" in refused("--data-dir", damaged, *TINY)


def named(folder, name):
    """A copy of a prepared dataset under another name, as data of one's own have it."""
    copy = folder.parent.parent / f"own-{name}" / name
    shutil.copytree(folder, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "dataset": name}))
    return copy.parent


def test_data_of_ones_own_are_found_by_all_and_by_name(tmp_path, prepared):
    own = named(prepared / "criteo_kaggle", "my_shop")
    for workloads in ("all", "my_shop"):
        result = call(
            "--data-dir", own, "--workloads", workloads, "--systems", "reference", "--dry-run", "--out", tmp_path, *TINY
        )
        assert result.exit_code == 0, result.output
        assert "reference x my_shop: real, smoke on cpu" in result.stdout
    assert "holds no my_shp, only my_shop; did you mean my_shop?" in refused("--data-dir", own, "--workloads", "my_shp")


def test_the_parent_process_starts_without_importing_torch():
    script = "import sys, suite.run.console.command; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(runner.__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
