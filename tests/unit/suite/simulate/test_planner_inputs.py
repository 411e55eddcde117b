"""What `suite curves --torchrec` writes, read by torchrec's own classes."""

import json

import pytest
import torch
from listed_traces import skewed_trace
from test_curves_command import SMOKE, run
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.types import CacheAlgorithm

from suite.records.command_line import BadOption
from suite.simulate.curves import miss_curves
from suite.simulate.models.model import Span
from suite.simulate.planner_inputs import PlannerInputs, offload_stats, planner_inputs

SPAN = Span(counted_from=10, stop=30)


@pytest.fixture(scope="module")
def curves():
    return miss_curves(skewed_trace(tables=[3_000, 40, 9_000], batches=30, samples=150), SPAN, per_table=True)


def torchrecs(stats):
    return EmbeddingOffloadStats(**stats.model_dump() | {"mrc_hist_counts": torch.tensor(stats.mrc_hist_counts)})


def test_torchrec_expects_what_the_curve_says_at_every_size(curves):
    for curve in curves.tables:
        stats = torchrecs(offload_stats(curve, curves.batches))
        for slots in {1, 2, curve.largest_batch, curve.used_rows // 2, curve.used_rows, curve.rows - 1}:
            assert stats.expected_miss_rate(slots / curve.rows) == pytest.approx(curve.miss_rate(slots), abs=1e-6)
        assert stats.expected_miss_rate(1.0) == 0
        assert stats.expected_lookups == round(curve.unique_ids / curves.batches)


def test_caches_begin_at_their_largest_batch_and_prefetching_holds_two(curves):
    plain, prefetched = (planner_inputs(curves, batch_size=150, prefetch=on) for on in (False, True))
    for curve in curves.tables:
        for inputs, batches in ((plain, 1), (prefetched, 2)):
            table = inputs.tables[curve.name]
            held = batches * curve.largest_batch
            if held >= curve.rows:
                assert (table.compute_kernel, table.cache) == ("fused", None)
            else:
                assert table.cache.load_factor == held / curve.rows
                assert table.cache.prefetch_pipeline is (batches == 2)
            assert table.pooling_factor == 1
    assert prefetched.tables["t1"].cache is None  # forty rows, nearly all of them in every batch
    assert plain.tables["t2"].cache is not None


def test_slots_are_divided_where_they_save_most_and_all_of_them_are_used(curves):
    inputs = planner_inputs(curves, batch_size=150, slots=2_000)
    given = {
        name: table.stats.height if table.cache is None else round(table.cache.load_factor * table.stats.height)
        for name, table in inputs.tables.items()
    }
    assert sum(given.values()) == 2_000
    assert given["t1"] == 40
    with pytest.raises(BadOption, match=r"--split: 300 slots are too few for torchrec's caches.* leave out --prefetch"):
        planner_inputs(curves, batch_size=150, slots=300, prefetch=True)


def test_constraints_are_torchrecs_own(curves):
    constraints = planner_inputs(curves, batch_size=75, prefetch=True).constraints()
    large = constraints["t2"]
    assert large.compute_kernels == ["fused_uvm_caching"]
    assert large.pooling_factors == [2.0]
    params = large.cache_params
    assert (params.algorithm, params.prefetch_pipeline) == (CacheAlgorithm.LRU, True)
    assert params.stats.expected_miss_rate(0.5) == pytest.approx(curves.tables[2].miss_rate(4_500), abs=1e-6)
    assert constraints["t1"].compute_kernels == ["fused"]
    assert constraints["t1"].cache_params is None


def test_the_command_writes_what_the_call_returns(tmp_path):
    plan = tmp_path / "new" / "plan.json"
    result = run(*SMOKE, "--torchrec", str(plan), "--prefetch")
    assert result.exit_code == 0, result.output
    assert f"Wrote {plan}" in result.stderr
    inputs = PlannerInputs.read(plan)
    assert (inputs.trace, inputs.batch_size, inputs.slots) == ("criteo_kaggle", 256, None)
    caches = [table.cache for table in inputs.tables.values() if table.cache is not None]
    assert {cache.prefetch_pipeline for cache in caches} == {True}
    assert all(
        set(one["stats"]) == {"cacheability", "expected_lookups", "mrc_hist_counts", "height"}
        for one in json.loads(plan.read_text())["tables"].values()
    )


def test_what_is_no_plan_is_refused_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(BadOption, match=r"No such file.*make it with `python -m suite curves --torchrec"):
        PlannerInputs.read(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"tables": {}}')
    with pytest.raises(BadOption, match=r"other.json: trace: Field required: make it with"):
        PlannerInputs.read(tmp_path / "other.json")
