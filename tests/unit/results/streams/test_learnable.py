"""What results/streams/learnable.py shows at `small`, on the tables and the model of `smoke`."""

import json
from dataclasses import replace

import learnable
import pytest
from learnable import ALL_ROWS, NO_EMBEDDINGS, SYSTEMS, failures, train_epoch

from suite.records.scales import SMOKE
from systems.contract import OptimizerKind
from workloads.schema import SCHEMAS


@pytest.mark.slow
def test_epoch_comes_near_the_optimum_and_without_embeddings_less_is_learnt():
    asked = {"scale": SMOKE, "optimizer": OptimizerKind.ROWWISE_ADAGRAD, "seed": 0, "test_samples": 40_000}
    whole, control = (train_epoch("avazu", kind, **asked) for kind in SYSTEMS)
    assert failures([whole, control]) == []
    assert whole["optimum"] == pytest.approx(whole["stated"], abs=0.01)
    assert control["auroc"] > 0.51


def test_multi_hot_stream_trains_at_the_rate_of_the_harness():
    dataset = "mlperf_dlrm_v2"
    scale = replace(SMOKE, epoch_samples=3 * SMOKE.batch_size)
    result = train_epoch(dataset, ALL_ROWS, scale=scale, optimizer=OptimizerKind.SGD, seed=0, test_samples=2_000)
    assert result["lr"] == round(SMOKE.lr["sgd"] / SCHEMAS[dataset].mean_hotness, 2) < 0.2
    assert 0.3 < result["auroc"] < result["optimum"]


def result(kind, *, auroc):
    return {"dataset": "avazu", "kind": kind, "seed": 0, "auroc": auroc, "gap": 0.76 - auroc}


def test_gap_above_the_bound_and_a_control_that_loses_little_are_failures():
    assert failures([result(ALL_ROWS, auroc=0.75), result(NO_EMBEDDINGS, auroc=0.71)]) == []
    said = failures([result(ALL_ROWS, auroc=0.73), result(NO_EMBEDDINGS, auroc=0.71)])
    assert len(said) == 2
    assert "0.0300 below the optimum" in said[0]
    assert "0.0200 are lost" in said[1]


def test_script_stores_what_it_measured_and_tells_bad_options(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(train_epoch.__kwdefaults__, "test_samples", 2_000)
    script = ["--scale", "smoke", "--epoch-samples", "2560", "--seeds", "4", "--out", str(tmp_path / "out.json")]
    assert learnable.main([*script, "--datasets", "avazu"]) == 1  # ten steps learn nothing, and it says so
    assert "avazu, seed 4: " in capsys.readouterr().out
    stored = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [(run["kind"], run["seed"], run["samples"]) for run in stored] == [(kind, 4, 2560) for kind in SYSTEMS]
    with pytest.raises(SystemExit):
        learnable.main([*script, "--datasets", "movielens"])
    assert "--datasets movielens: choose from criteo_kaggle" in capsys.readouterr().err
