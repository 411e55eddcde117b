"""How far predictions were off: records made up, costs made by hand."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from advise_scenes import calibration
from typer.testing import CliRunner, Result

from suite.advise import against
from suite.advise.against import Accuracy
from suite.advise.calibrate.calibrate import Calibration
from suite.advise.case import Case
from suite.advise.command import advise_command
from suite.advise.counts import Replays
from suite.advise.prediction import predict
from suite.records.environment import capture
from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import Span
from suite.simulate.trace import WorkloadTrace
from tests.unit.suite.fabricate import environment, record
from workloads.prepare.prepare import prepare
from workloads.prepared import PreparedWorkload

app = typer.Typer()
app.command()(advise_command)

HERE = capture(threads=2)
SETTING = {
    "workload": "avazu",
    "scale": "smoke",
    "device": "cpu",
    "optimizer": "sgd",
    "batch_size": 64,
    "embedding_dim": 16,
    "max_rows": 2000,
    "cache_ratio": 0.3,
    "warmup_steps": 2,
    "turns": 2,
    "turn_steps": 3,
}
ON_GPU = {**SETTING, "device": "cuda"}


def _written(folder: Path, *records: Record) -> Path:
    for one in records:
        RecordStore(folder).write(one)
    return folder


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--quiet"], env={"COLUMNS": "80"})


def _refused(*arguments: object) -> str:
    result = _run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[Calibration]:
    """Costs made by hand in place of measured ones. The list receives what was asked for."""
    made: list[Calibration] = []

    def by_hand(cases: Sequence[Case], **_: object) -> Calibration:
        (shape,) = {case.shape for case in cases}
        assert {case.kernel.label for case in cases} == {"full_gpu", "freq_cache"}
        made.append(calibration(of=shape))
        return made[-1]

    monkeypatch.setattr(against, "calibrate", by_hand)
    return made


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two rounds of one system and a round of another, timed here; one that is not timed, and one that failed."""
    here = {"where": HERE, "setting": SETTING}
    turns = [{"system_s": ((3 / 20, 3 / 60), (3 / 60, 3 / 90))}, {"system_s": ((3 / 60, 3 / 60), (3 / 10, 3 / 70))}]
    return _written(
        tmp_path / "results",
        *(record("full_gpu", round=number, timed=timed, baseline=None, **here) for number, timed in enumerate(turns)),
        record("freq_cache", samples_per_s=64 * 40.0, noise=0.0, **here),
        record("fbgemm_uvm", computes_as="full_gpu", **here),
        record("reference", status=Status.TIMEOUT, reason="too slow", **here),
    )


def test_every_measured_system_is_predicted_by_its_own_steps(results: Path, costs: list[Calibration]) -> None:
    result = _run("--against", results, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    found = {cell["system"]: cell for cell in content["cells"]}
    assert set(found) == {"full_gpu", "freq_cache"}
    assert (found["full_gpu"]["rounds"], found["full_gpu"]["measured_steps_per_s"]) == (2, pytest.approx(60))
    assert content["basis"] == "calibrated"
    for one in RecordStore(results).load_all()[0]:
        if one.cell.system in found and one.cell.round == 0:
            workload = open_workload(one.cell)
            span = Span(counted_from=2, stop=2 + 2 * 3)
            counts = Replays(WorkloadTrace(workload), span).counts(Case.of(one.cell, workload))
            expected = 1 / predict(Case.of(one.cell, workload), counts, costs[0]).step_s
            assert found[one.cell.system]["predicted_steps_per_s"] == pytest.approx(expected)
    errors = [found[name]["measured_steps_per_s"] / found[name]["predicted_steps_per_s"] - 1 for name in found]
    assert [found[name]["error"] for name in found] == pytest.approx(errors)
    assert content["median_absolute_error"] == pytest.approx(sum(map(abs, errors)) / 2)


@pytest.mark.usefixtures("costs")
def test_table_has_both_rates_the_median_error_and_what_is_left_out(results: Path) -> None:
    _written(results, record("freq_cash", where=HERE, setting=SETTING))
    result = _run("--against", results)
    assert result.exit_code == 0, result.output
    assert "avazu, synthetic data, scale smoke, batch 64, dim 16, sgd, cache ratio 30 %" in " ".join(
        result.stdout.split()
    )
    assert "predicted it/s" in result.stdout
    assert "measured it/s" in result.stdout
    assert "freq_cash x avazu is left out: unknown system 'freq_cash'" in result.stdout
    assert "Median absolute error" in result.stdout
    assert "over 2 cells, calibrated on a cpu" in result.stdout
    assert max(map(len, result.stdout.split("freq_cash")[0].splitlines())) <= 80


@pytest.mark.usefixtures("costs")
def test_sizes_of_a_sweep_are_told_apart(results: Path) -> None:
    larger = {**SETTING, "cache_ratio": None, "device_budget_bytes": 1 << 20}
    _written(results, record("freq_cache", where=HERE, setting=larger))
    content = json.loads(_run("--against", results, "--json").stdout)
    sizes = {(cell["embedding_dim"], cell["cache"]) for cell in content["cells"] if cell["system"] == "freq_cache"}
    assert sizes == {(16, "cache ratio 30 %"), (16, "device budget 1 MiB")}
    assert "dim 16, sgd, device budget 1 MiB" in " ".join(_run("--against", results).stdout.split())


ON_A_DRIVE = {**SETTING, "cache_ratio": None, "host_budget_bytes": 1 << 29}


@pytest.mark.usefixtures("costs")
@pytest.mark.parametrize(
    ("system", "setting", "reason"),
    [
        ("full_ram", ON_A_DRIVE, "measured with rows on a drive, at a host budget"),
        ("freq_cache[tier=file]", ON_A_DRIVE, "measured with rows on a drive, at a host budget"),
        ("colossalai_cache", SETTING, "what colossalai_cache misses, and takes at each size, has no model"),
        ("hot_split", SETTING, "what hot_split misses, and takes at each size, has no model"),
    ],
)
def test_what_the_model_does_not_cover_is_left_out_with_the_reason(
    results: Path, tmp_path: Path, system: str, setting: dict[str, object], reason: str
) -> None:
    strange = record(system, where=HERE, setting=setting)
    content = json.loads(_run("--against", _written(results, strange), "--json").stdout)
    assert {cell["system"] for cell in content["cells"]} == {"full_gpu", "freq_cache"}
    (left_out,) = content["left_out"]
    assert left_out["system"] == system
    assert reason in left_out["reason"]
    alone = _written(tmp_path / "alone", strange)
    assert f"no record can be predicted, e.g. {system}: {reason}" in _refused("--against", alone)


def test_dense_layers_in_tf32_are_predicted_in_tf32(tmp_path: Path) -> None:
    large = {**ON_GPU, "batch_size": 512, "top_mlp": (4096, 4096, 1)}
    folders = [
        _written(tmp_path / str(tf32), record("full_gpu", setting={**large, "tf32": tf32})) for tf32 in (False, True)
    ]
    contents = [json.loads(_run("--against", folder, "--hardware", "a100", "--json").stdout) for folder in folders]
    full, tf32 = (content["cells"][0]["predicted_steps_per_s"] for content in contents)
    assert tf32 > full


def test_records_of_another_machine_need_a_description_of_it(results: Path) -> None:
    _written(results, record("full_gpu", where=environment(), setting=ON_GPU))
    said = _refused("--against", results)
    assert "--against: 1 of 4 records" in said
    assert "were measured on another machine (NVIDIA H100 80GB HBM3)" in said
    assert "describe that machine with --hardware" in said
    described = _run("--against", results, "--hardware", "h100", "--json")
    assert described.exit_code == 0, described.output
    content = json.loads(described.stdout)
    assert (content["basis"], [cell["system"] for cell in content["cells"]]) == ("modelled", ["full_gpu"])
    assert {one["system"] for one in content["left_out"]} == {"full_gpu", "freq_cache"}
    assert "measured on a CPU" in content["left_out"][0]["reason"]


def test_what_cannot_be_compared_is_refused(results: Path, tmp_path: Path) -> None:
    assert "has no timed system: give the --out of run_bench.py" in _refused("--against", tmp_path / "empty")
    said = _refused("--against", results, "--workload", "avazu")
    assert "--workload and --against exclude each other: the records say what to predict" in said


def test_nothing_predicted_has_no_median() -> None:
    nothing = Accuracy(results="r", machine="m", basis="modelled", cells=(), left_out=())
    assert nothing.median_absolute_error is None


NO_SUCH = {
    "dim": {"embedding_dim": 2**40},
    "odd dim": {"embedding_dim": 6},
    "batch": {"batch_size": 2**40},
    "layer": {"top_mlp": (2**62, 1)},
    "negative layer": {"bottom_mlp": (-1,)},
    "optimizer": {"optimizer": "sgd2"},
    "seed": {"seed": -1},
    "share": {"frequency_prefix": 0.0},
    "ratio": {"cache_ratio": 7.0},
    "warm-up": {"warmup_steps": 2**60},
    "before the first": {"warmup_steps": -1},
    "rows": {"max_rows": 1},
    "track": {"workload": "avazu@nowhere"},
    "workload": {"workload": "../avazu"},
    "real data": {"data": "real", "data_dir": "/dev/zero", "data_digest": "d"},
}


@pytest.mark.usefixtures("costs")
@pytest.mark.parametrize("setting", NO_SUCH.values(), ids=NO_SUCH)
def test_what_no_run_can_have_measured_is_left_out_at_once(results: Path, setting: dict[str, object]) -> None:
    strange = record("full_gpu", where=HERE, setting={**SETTING, **setting})
    content = json.loads(_run("--against", _written(results, strange), "--json").stdout)
    assert len(content["cells"]) == 2
    (left_out,) = content["left_out"]
    assert left_out["reason"]


@pytest.mark.usefixtures("costs")
def test_code_that_a_record_names_is_not_run(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_of_a_record.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    evil = record("evil_of_a_record:System", where=HERE, setting=SETTING)
    content = json.loads(_run("--against", _written(results, evil), "--json").stdout)
    (left_out,) = content["left_out"]
    assert "never imported because a record names it" in left_out["reason"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("costs")
def test_real_data_are_opened_where_the_user_says_and_must_be_those_measured(tmp_path: Path) -> None:
    lines = "".join("\t".join(["1", *map(str, range(39))]) + "\n" for _ in range(196))
    (tmp_path / "train.txt").write_text(lines)
    prepare("criteo_kaggle", [tmp_path / "train.txt"], out=tmp_path / "data")
    digest = PreparedWorkload.open(tmp_path / "data" / "criteo_kaggle", batch_size=1).digest
    os.mkfifo(tmp_path / "pipe")
    real = {**SETTING, "workload": "criteo_kaggle", "data": "real", "max_rows": None, "data_digest": digest}
    real |= {"data_dir": str(tmp_path / "pipe"), "batch_size": 16, "warmup_steps": 1, "turns": 1, "turn_steps": 1}
    both = [record(name, where=HERE, setting=real) for name in ("full_gpu", "freq_cache")]
    _written(tmp_path / "real", *both)
    _written(tmp_path / "other", record("full_gpu", where=HERE, setting={**real, "data_digest": "other"}))
    assert "opened where --data-dir says: give it too" in _refused("--against", tmp_path / "real")
    there = ("--data-dir", tmp_path / "data")
    assert "measured on other data than" in _refused("--against", tmp_path / "other", *there)
    content = json.loads(_run("--against", tmp_path / "real", *there, "--json").stdout)
    assert (len(content["cells"]), content["left_out"]) == (2, [])


@pytest.mark.usefixtures("costs")
def test_files_that_are_no_records_are_named(results: Path) -> None:
    forged = record("full_gpu", where=HERE, setting={**SETTING, "lr": 0.5}).model_copy(update={"key": "0" * 16})
    path = RecordStore(results).write(forged)
    content = json.loads(_run("--against", results, "--json").stdout)
    assert content["unreadable"] == [f"{path}: has a key that its cell and environment do not give: " + EDITED]
    assert "has a key that its cell" in " ".join(_run("--against", results).stdout.split())  # wherever lines break


EDITED = "somebody edited them; restore the file or measure it again"
