"""`python -m suite simulate`: what it refuses, replays, prints and writes."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from suite.__main__ import COMMANDS, app
from suite.simulate import command, results
from suite.simulate.models.model import RowBytes, Span
from suite.simulate.models.registry import MODELS, load
from suite.simulate.options import open_trace
from suite.simulate.results import Simulation
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import Variant, read_variant

SMOKE = ["--scale", "smoke", "--workload", "avazu", "--batches", "6", "--warmup", "2"]
FEW = "freq_cache[policy=lru],freq_cache[policy=lru,look_ahead=16],fbgemm_uvm_caching,uvm"

ROW = RowBytes(weights=16, optimizer=SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.0), dim=4)
SPAN = Span(counted_from=2, stop=6)
POLICIES = ("freq_cache[policy=static]", "freq_cache[policy=lru,look_ahead=4]", "uvm", "belady", "fae", "lru")


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, words)], env={"COLUMNS": "80", "NO_COLOR": "1"})


def done(*words: object) -> Result:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result


def refused(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, Path, str]:
    """Four sizes, written to a directory that was not there."""
    out = tmp_path_factory.mktemp("swept") / "new" / "out"
    result = done(*SMOKE, "--policies", FEW, "--cache-ratio", "0.001:0.5", "--points", 4, "--out", out)
    return Simulation.model_validate_json((out / "simulation.json").read_text()), out, result.stdout


def test_every_policy_has_a_row_at_every_size(swept: tuple[Simulation, Path, str]) -> None:
    simulation, _, _ = swept
    policies = ["freq_cache[policy=lru]", "freq_cache[policy=lru,look_ahead=16]", "fbgemm_uvm_caching", "uvm"]
    ratios = (0.001, 0.00794, 0.063, 0.5)
    assert simulation.configuration.policies == (*policies, "belady", "compulsory")
    assert simulation.configuration.cache_ratios == ratios
    expected = [(policy, ratio) for ratio in ratios for policy in simulation.configuration.policies]
    assert [(row.policy, row.cache_ratio) for row in simulation.rows] == expected
    assert simulation.complete
    rows = simulation.stream.rows
    assert {row.slots_asked for row in simulation.rows} == {max(1, int(rows * ratio)) for ratio in ratios}


def test_nothing_misses_less_than_the_least(swept: tuple[Simulation, Path, str]) -> None:
    simulation, _, _ = swept
    for row in simulation.rows:
        assert row.traffic is not None
        assert row.traffic.batches == 6
        if row.policy == "compulsory":
            assert row.least is None
            continue
        assert row.least is not None
        assert row.least.slots == max(row.slots, row.slots_asked)
        past_it = load(Variant(row.policy.split("[")[0])).bypasses
        assert row.least.policy == ("belady[bypass=on]" if past_it else "belady")
        assert row.traffic.unique_misses >= row.least.unique_misses
        if row.policy == "belady":
            assert row.of_least_misses == row.of_least_bytes == 1.0


def test_csv_says_what_json_says(swept: tuple[Simulation, Path, str]) -> None:
    simulation, out, _ = swept
    for line, row in zip(csv.DictReader((out / "simulation.csv").open()), simulation.rows, strict=True):
        assert row.traffic is not None
        assert (line["policy"], float(line["cache_ratio"])) == (row.policy, row.cache_ratio)
        assert int(line["unique_misses"]) == row.traffic.unique_misses
        assert int(line["bytes_fetched"]) == row.traffic.bytes_fetched
        assert (float(line["misses_of_least"]) if line["misses_of_least"] else None) == row.of_least_misses


@pytest.mark.parametrize("width", [80, 200])
def test_tables_fit_the_terminal(swept: tuple[Simulation, Path, str], width: int) -> None:
    simulation, _, _ = swept
    few = simulation.model_copy(
        update={"configuration": simulation.configuration.model_copy(update={"cache_ratios": (0.063,)})}
    )
    for shown in (simulation, few):
        text = io.StringIO()
        results.show(shown, Console(file=text, width=width, markup=False, highlight=False))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in text.getvalue()


def test_a_trace_file_is_replayed(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 300, (400, 2))
    np.save(tmp_path / "mine.npy", ids)
    whole = ["--trace", tmp_path / "mine.npy", "--batch-size", 50, "--epoch", "--warmup", 0, "--json"]
    here = json.loads(done(*whole, "--cache-ratio", "0.5", "--policies", "lru,uvm").stdout)
    assert here["stream"]["name"] == "mine.npy"
    assert here["stream"]["workload"] is None
    assert here["configuration"]["counted_batches"] == 8
    lru = here["rows"][0]["traffic"]
    assert lru["unique_ids"] == sum(len(set(ids[i : i + 50, t].tolist())) for i in range(0, 400, 50) for t in (0, 1))


def test_a_policy_that_cannot_run_is_a_row_and_no_failure() -> None:
    result = done(*SMOKE, "--policies", "colossalai", "--cache-ratio", "0.001")
    assert "colossalai cannot run at 0.1 %: " in result.stdout
    assert "n/a" in result.stdout


def test_a_policy_that_fails_makes_the_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from suite.simulate.models.model import CacheModel\n"
        "class Broken(CacheModel):\n"
        "    def step(self, batch, tally):\n"
        "        raise RuntimeError('a bug')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        result = call(*SMOKE, "--policies", "mine:Broken,uvm")
    assert result.exit_code == 1
    assert "mine:Broken failed at 10 %: RuntimeError: a bug" in " ".join(result.stdout.split())
    assert "uvm" in result.stdout


def test_interrupt_keeps_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cells = command.run_cells

    def until_the_third(*args, **options):
        for number, outcome in enumerate(run_cells(*args, **options)):
            if number == 3:
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(command, "run_cells", until_the_third)
    monkeypatch.setattr(command, "MEMORY_BYTES", 1)  # a pass for each
    result = call(*SMOKE, "--policies", "uvm,lru", "--cache-ratio", "0.05,0.1", "--out", tmp_path)
    assert result.exit_code == 130
    kept = Simulation.model_validate_json((tmp_path / "simulation.json").read_text())
    assert not kept.complete
    assert [row.policy for row in kept.rows] == ["uvm", "belady", "belady"]  # the optimum came first
    assert "Interrupted" in result.stdout


def test_counters_are_the_same_in_one_pass_and_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [read_variant(policy, known=list(MODELS), what="policy") for policy in POLICIES]
    cells = [command.SimulatedCell(policy=policy, slots=300) for policy in named]
    trace = open_trace(workload="avazu", scale="smoke", batch_size=64)
    found, told = [], []
    for memory_bytes in (command.MEMORY_BYTES, 50 * trace.rows, 1):  # all cells at once, two, one
        monkeypatch.setattr(command, "MEMORY_BYTES", memory_bytes)
        outcomes = command.run_cells(cells, trace=trace, span=SPAN, row=ROW, shown=lambda *said: told.append(said[1]))
        found.append({str(cell.policy): outcome.traffic for cell, outcome in outcomes})
        assert told == sorted(told)
        assert told[-1] == len(cells) * SPAN.stop
        told.clear()
    assert found[0] == found[1] == found[2]
    assert tuple(found[0]) == POLICIES
    traffic = found[0]["uvm"]
    assert traffic.batches == 4
    assert traffic.bytes_fetched == 16 * traffic.rows_fetched + 16 * traffic.unique_ids
    assert traffic.bytes_written_back == 32 * traffic.rows_written_back


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cache-ratio", "0"], "--cache-ratio: 0 is out of range, it must be above 0 and at most 1"),
        (["--cache-ratio", "0.5:0.1"], "write the smaller ratio first"),
        (["--batches", "5", "--epoch"], "--epoch and --batches exclude each other"),
        (["--warmup", "99999999"], "none is left to count after 99999999"),
        (["--batches", "99999999"], "not 99999999"),
        (["--embedding-dim", "6"], "--embedding-dim: 6 is out of range, it must be a multiple of 4"),
        (["--workload", "avazu,criteo_kaggle"], "--workload: give one of avazu, criteo_kaggle"),
        (["--trace", "missing.npy"], "--trace: cannot read missing.npy: [Errno 2] No such file"),
        (["--data-dir", "missing"], "missing"),
        (["--trace", "ids.npy", "--data-dir", "data"], "--trace and --data-dir exclude each other"),
        (["--out", "/proc/out"], "--out: cannot make /proc/out"),
        (["--frequency-prefix", "2"], "--frequency-prefix: 2.0 is out of range"),
        (["--seed", "-1"], "seed is -1"),
    ],
)
def test_options_that_cannot_be_are_refused(words: list[str], sentence: str) -> None:
    scale = [] if "--workload" in words else ["--workload", "avazu"]
    assert sentence in refused("--scale", "smoke", "--policies", "uvm", *scale, *words)


def test_help_lists_the_commands_without_importing_them() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from suite.__main__ import app; "
        "print(CliRunner().invoke(app, ['--help']).output); assert 'torch' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert all(name in said for name in COMMANDS)
