"""Counts of cells come from replays of their own batches."""

import pytest
import torch
from advise_scenes import PowerTrace, case

from suite.advise.case import Case
from suite.advise.counts import Replays, model_of, span_of, steady_span
from suite.run.cell.stream import open_workload
from suite.run.cell.training import tables_of
from suite.run.plan import Options, plan_cells
from suite.simulate.models.model import Span
from suite.simulate.traces.trace import WorkloadTrace
from systems import registry
from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec
from tests.unit.suite.fabricate import turns


@pytest.mark.parametrize("system", ["freq_cache[look_ahead=4,policy=lru]", "freq_cache"])
def test_counts_of_a_cell_are_the_counters_of_its_turns(system: str) -> None:
    variant = registry.Variant.parse(system)
    options = Options(systems=(variant,), workloads=("avazu",), device="cpu", scale="smoke", cache_ratios=(0.3,))
    cell = plan_cells(options, datasets=None, host_bytes=1 << 34)[0][0]
    workload = open_workload(cell)
    found = registry.load(variant)
    trained = found(
        SystemSpec(
            tables=tables_of(workload, cell.embedding_dim),
            optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
            device=torch.device("cpu"),
            budget=CacheRatio(ratio=0.3),
            batch_lookups=workload.batch_lookups,
            frequencies=workload.frequencies(),
            parameters=registry.resolved_parameters(variant, found),
        )
    )
    span = span_of(cell, turns(cell, 1.0))
    batches = [workload.batch(index).features for index in range(span.stop)]
    coming = iter(batches)
    announced = 0
    for number, batch in enumerate(batches):
        while trained.look_ahead and announced <= number + trained.look_ahead and announced < len(batches):
            trained.prefetch(next(coming))
            announced += 1
        if number == span.counted_from:
            trained.reset_counters()
        pooled = trained(batch).values()
        pooled.backward(torch.ones_like(pooled))
    counters = trained.counters()
    counts = Replays(WorkloadTrace(workload), span).counts(Case.of(cell, workload))
    steps = span.stop - span.counted_from
    assert counters.steps == steps
    assert (counts.lookups * steps, counts.distinct * steps) == (counters.lookups, counters.unique_ids)
    assert counts.misses * steps == counters.unique_misses
    assert (counts.misses > 0) == bool(counters.unique_misses)
    assert counts.largest >= counts.distinct


def test_systems_without_a_cache_miss_nothing() -> None:
    replays = Replays(PowerTrace(batches=6), Span(counted_from=2, stop=6))
    counts = replays.counts(case("full_gpu"))
    assert counts.lookups == 192
    assert 0 < counts.distinct <= counts.largest < 192
    assert (counts.misses, counts.moved) == (0, 0)
    assert model_of(case("fbgemm_uvm_caching")) is None  # there is no such cache on a CPU


def test_rows_read_in_place_are_moved_once_per_id_and_again_in_backward() -> None:
    replays = Replays(PowerTrace(batches=6), Span(counted_from=2, stop=6))
    counts = replays.counts(case("torchrec_uvm", device="cuda"))
    assert counts.rows_fetched == counts.lookups + counts.distinct
    assert counts.rows_written_back == counts.distinct


def test_equal_caches_are_replayed_once() -> None:
    trace = PowerTrace(batches=4)
    replays = Replays(trace, Span(counted_from=1, stop=4))
    replays.counts(case("freq_cache[policy=lfu]"))
    before = trace.asked
    replays.counts(case("freq_cache[policy=lfu,tier=file]"))
    assert trace.asked == before
    replays.counts(case("freq_cache[policy=lru]"))
    assert trace.asked > before


def test_a_third_of_a_span_is_left_uncounted() -> None:
    trace = PowerTrace(batches=90)
    assert steady_span(trace) == Span(counted_from=30, stop=90)
    assert steady_span(trace, batches=2) == Span(counted_from=0, stop=2)
    assert steady_span(PowerTrace(batches=1)) == Span(counted_from=0, stop=1)
