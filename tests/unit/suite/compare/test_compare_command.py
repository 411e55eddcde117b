import pytest
import typer
from compare_scenes import OTHER_MACHINE, STEADY, later, run_at, scaled
from typer.testing import CliRunner

from suite.compare.command import compare_command
from suite.records.record import Status
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, record, rounds, verification

LONG = "fbgemm_uvm_caching[policy=lookahead,prefetch=64,kernels=fbgemm]"


def run(*arguments, columns=80):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(compare_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Two runs with a change of every kind."""
    root = tmp_path_factory.mktemp("compare")
    wrong = verification(passed=False, difference=0.3)
    before = [
        *gpu_run(),
        *cpu_run(),
        *rounds(LONG, STEADY, setting={"seed": 2}),
        *rounds("lost", STEADY),
        *rounds("unverified", STEADY),
        *rounds("once", [BASELINE], setting={"builds": 1}),
    ]
    newer = environment(packages={"torch": "2.14.0"}, code="beef")
    disturbed = ("other processes took 40% of the CPUs",)
    after = [
        *[one.model_copy(update={"started_at": "2026-11-02T12:00:00+00:00"}) for one in cpu_run()],
        *later("full_gpu", scaled(0.9), where=newer, baseline=0.9 * BASELINE, offloads=False),
        *later("cache[policy=lfu]", [700_000, 690_000, 695_000], where=newer, auroc=0.75),
        *later(LONG, scaled(1.5), setting={"seed": 2}, where=newer, disturbed=disturbed),
        record("torchrec_uvm", status=Status.CRASHED, reason="CUDA error,\nsee the log", phase="warm up", where=newer),
        *later("unverified", STEADY, checked=wrong, status=Status.WRONG_ANSWER, where=newer),
        *later("once", [0.9 * BASELINE], where=newer, setting={"builds": 1}),
        *later("new", STEADY, where=newer),
    ]
    return run_at(root / "baseline", before), run_at(root / "candidate", after)


def test_everything_fits_80_columns_and_all_lists_what_did_not_change(paths):
    short, long = run(*paths), run(*paths, "--all", "--fail-if-slower", "10%")
    assert (short.exit_code, long.exit_code) == (0, 1)
    for result in (short, long):
        assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout
        assert "\x1b" not in result.output
    assert "cells (--all lists them)" in short.stdout
    assert long.stdout.count("relative speed") > short.stdout.count("relative speed")
    said = " ".join(long.stdout.split())
    assert "--fail-if-slower 10%: failed, 5 reasons" in said
    assert "cache[policy=lfu] x criteo_kaggle, builds 3, seed 1: slower by 16.2 %, more than 10 %" in said


def test_changes_stand_in_order_of_importance_in_one_table(paths):
    shown = run(*paths, columns=200).stdout
    assert shown.count("RUN_A -> RUN_B") == 1
    order = [
        "RUN_A: ",
        f"RUN_B has 3 records of a disturbed machine, e.g. {LONG} x criteo_kaggle: other processes took 40%",
        "torch: 2.13.0 -> 2.14.0, 2.13.0",
        "cache[policy=lfu] x criteo_kaggle, builds 3, seed 1 relative speed",
        f"{LONG} x criteo_kaggle, builds 3, seed 2 relative speed",
        "status ok -> crashed in phase warm up: CUDA error, see the log",
        "verified bitwise -> no, verification lost",
        "AUROC 0.79110 -> 0.75000",
        "it/s of the baseline 100.00 -> 90.00 (-10 %; no interval)",
        "only in RUN_A: ok",
        "only in RUN_B: ok",
        "Relative speed beyond noise: 1 slower, 1 faster",
        "No change beyond noise: ",
        "Speed not judged (a single build, so no interval: run both with --rounds 3 or more): once x",
    ]
    flat = " ".join(shown.split())
    positions = [flat.find(text) for text in order]
    assert -1 not in positions, flat
    assert positions == sorted(positions), flat


def test_gate_passes_and_says_how_much_it_judged_and_files_that_were_skipped_are_named(tmp_path):
    paths = [run_at(tmp_path / "a", rounds("cache", STEADY)), run_at(tmp_path / "b", later("cache", STEADY))]
    (paths[1] / "records" / "torn.json").write_text('{"schema')
    result = run(*paths, "--fail-if-slower", "5%")
    assert result.exit_code == 0
    assert "--fail-if-slower 5%: passed, 1 cell judged" in result.stdout
    assert "torn.json: is not JSON, or cut short" in result.stderr and "torn.json" not in result.stdout


def test_gate_that_judged_nothing_exits_2_with_the_remedy(tmp_path):
    there = run_at(tmp_path / "b", later("cache", STEADY, where=OTHER_MACHINE))
    result = run(run_at(tmp_path / "a", rounds("cache", STEADY)), there, "--fail-if-slower", "10%")
    assert result.exit_code == 2
    assert "error: --fail-if-slower judged no cell" in result.stderr
    assert "both runs on one machine" in result.stderr
    assert "passed" not in result.stdout


def test_what_cannot_be_compared_is_one_sentence_and_exit_2(tmp_path):
    root = run_at(tmp_path / "a", rounds("cache", STEADY))
    other = run_at(tmp_path / "b", later("cache", STEADY, setting={"seed": 2}))
    for words, sentence in (
        ((other, "--fail-if-slower", "10"), "error: --fail-if-slower: '10' is no share of speed"),
        ((root,), "RUN_A and RUN_B are the same records"),
        ((tmp_path / "none",), "has no records/: give a results directory"),
        (
            (other,),
            "no cell in common, for example cache x criteo_kaggle, seed 1 against cache x criteo_kaggle, seed 2; run",
        ),
    ):
        result = run(root, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert sentence in result.stderr
