"""What results/streams/learnable.py shows at `small`, on the tables and the model of `smoke`."""

import json
import sys

import learnable
import pytest
from learnable import (
    ALL_ROWS,
    HUNDREDTH,
    NO_EMBEDDINGS,
    TENTH,
    FoldedWorkload,
    Result,
    failures,
    train_epoch,
)

from suite.records.scales import SMALL, SMOKE
from systems.contract import OptimizerKind
from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload


@pytest.mark.slow
def test_epoch_comes_near_the_optimum_and_fewer_rows_learn_less():
    steps = SMOKE.epoch_samples // SMOKE.batch_size
    asked = {"scale": SMOKE, "optimizer": OptimizerKind.ROWWISE_ADAGRAD, "seed": 0, "test_samples": 40_000}
    results = {kind: train_epoch("avazu", kind, steps=steps, **asked) for kind in (ALL_ROWS, HUNDREDTH, NO_EMBEDDINGS)}
    assert failures(list(results.values())) == []
    assert results[ALL_ROWS].optimum == pytest.approx(results[ALL_ROWS].stated, abs=0.01)
    assert results[ALL_ROWS].auroc > results[HUNDREDTH].auroc + 0.016
    assert results[HUNDREDTH].auroc > results[NO_EMBEDDINGS].auroc + 0.03
    assert results[NO_EMBEDDINGS].auroc > 0.51


@pytest.mark.parametrize("dataset", ["mlperf_dlrm_v2", "criteo_kaggle_bags"])
def test_multi_hot_stream_trains_at_the_rate_of_the_harness(dataset):
    result = train_epoch(dataset, TENTH, scale=SMOKE, steps=3, optimizer=OptimizerKind.SGD, seed=0, test_samples=2_000)
    assert result.lr == round(SMOKE.lr["sgd"] / SCHEMAS[dataset].bags.mean_hotness, 2) < 0.2
    assert result.rows < SMOKE.max_rows / 5
    assert 0.3 < result.auroc < result.optimum


def test_folded_ids_stay_below_their_share_of_rows_and_change_nothing_else():
    stream = SyntheticWorkload.create("avazu", batch_size=64, seed=1, max_rows=50_000)
    folded = FoldedWorkload(stream, share=0.01)
    whole, part = stream.batch(3, Split.TEST), folded.batch(3, Split.TEST)
    assert part.labels.equal(whole.labels)
    assert part.dense.equal(whole.dense)
    assert part.features.lengths().equal(whole.features.lengths())
    for (name, rows), (_, fewer) in zip(stream.tables, folded.tables, strict=True):
        assert fewer == max(1, round(rows * 0.01))
        assert part.features[name].values().equal(whole.features[name].values() % fewer)


def result(kind, *, auroc):
    return Result(
        dataset="avazu",
        kind=kind.name,
        seed=0,
        optimizer="sgd",
        lr=1.0,
        rows=1,
        steps=1,
        samples=1,
        stated=0.76,
        optimum=0.76,
        auroc=auroc,
        train_s=0.0,
        data_s=0.0,
    )


def test_gap_above_the_bound_and_a_control_that_loses_little_are_failures():
    assert failures([result(ALL_ROWS, auroc=0.75), result(NO_EMBEDDINGS, auroc=0.71)]) == []
    said = failures([result(ALL_ROWS, auroc=0.73), result(NO_EMBEDDINGS, auroc=0.71)])
    assert len(said) == 2
    assert "0.0300 below the optimum" in said[0]
    assert "0.0200 are lost" in said[1]


def test_script_stores_what_it_measured_and_tells_bad_options(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(learnable.torch, "set_num_threads", lambda threads: None)
    monkeypatch.setitem(train_epoch.__kwdefaults__, "test_samples", 2_000)
    script = ["learnable.py", "--scale", "smoke", "--epoch-samples", "2560", "--kinds", "no embeddings"]
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", [*script, "--datasets", "avazu", "--seeds", "4", "--out", str(out)])
    assert learnable.main() == 0
    (stored,) = json.loads(out.read_text())
    assert (stored["kind"], stored["seed"], stored["samples"]) == ("no embeddings", 4, 2560)
    assert stored["gap"] == pytest.approx(stored["optimum"] - stored["auroc"])
    monkeypatch.setattr(sys, "argv", [*script, "--datasets", "movielens"])
    with pytest.raises(SystemExit):
        learnable.main()
    assert "--datasets movielens: choose from criteo_kaggle" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [SMOKE, SMALL])
def test_epoch_is_a_whole_number_of_batches(scale):
    assert scale.epoch_samples % scale.batch_size == 0
