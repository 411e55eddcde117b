"""What is simulated is what training counts: every counter of the cache, and of rows read in place, exactly."""

from dataclasses import replace

import pytest
import torch
from bag_streams import bagged
from scenes import optimizer

from suite.run.cell.training import tables_of
from suite.simulate.models.model import CacheModel, RowBytes, Setting, Span, Tally, replay
from suite.simulate.models.registry import build as build_model
from suite.simulate.options import slots_of
from suite.simulate.trace import WorkloadTrace
from systems.contract import CacheRatio, Counters, OptimizerKind, Rows, SystemSpec
from systems.freq_cache import FreqCache
from systems.freq_cache.sizing import CacheSpec
from systems.freq_cache.tiers.ram_index import RamIndex
from systems.registry import Variant, resolved_parameters
from systems.unique_counter import UniqueCounter
from workloads.streams.synthetic import SyntheticWorkload

DIM = 4
WARMUP, STOP = 8, 26
OVERFLOWING, CROWDED, ROOMY = 0.02, 0.12, 0.6
"""Cache ratios: every batch exceeds the slots, few slots are left beside a batch, and most rows have one."""


def stream(name: str = "criteo_kaggle", samples: int = 24) -> SyntheticWorkload:
    return SyntheticWorkload.create(name, batch_size=samples, seed=3, max_rows=3000)


BAGS = bagged(batch_size=8, seed=3, max_rows=3000)


def trained(
    workload: SyntheticWorkload, parameters: dict[str, str], *, ratio: float, kind: OptimizerKind, places: int = 0
) -> Counters:
    """Counters of a cache that trains, over the batches `WARMUP` to `STOP`, its rows on a drive if RAM has `places`."""
    level = {"tier": "file"} if places else {}
    spec = CacheSpec.of(
        SystemSpec(
            tables=tables_of(workload.tables, DIM),
            optimizer=optimizer(kind),
            device=torch.device("cpu"),
            budget=CacheRatio(ratio=ratio),
            batch_lookups=workload.batch_lookups,
            frequencies=workload.frequencies() if parameters["policy"] == "static" else None,
            parameters=resolved_parameters(Variant("freq_cache", tuple((parameters | level).items())), FreqCache),
        )
    )
    system = FreqCache(replace(spec, ram_bytes=places * (4 * DIM + RamIndex.BYTES)))
    for name, rows in workload.tables if places else ():
        system.load_rows(name, 0, Rows(torch.zeros(rows, DIM)))  # what was never written is computed, and not kept
    batches = (workload.batch(index).features for index in range(STOP))
    for number, features in enumerate(system.announced(batches)):
        if number == WARMUP:
            system.reset_counters()
            system.count_traffic(True)
        system(features).values().sum().backward()
    return system.counters()


def simulated(workload: SyntheticWorkload, policy: Variant, *, ratio: float) -> tuple[Tally, CacheModel, WorkloadTrace]:
    trace = WorkloadTrace(workload)
    setting = Setting(trace=trace, span=Span(counted_from=WARMUP, stop=STOP), slots=slots_of(trace.rows, ratio))
    model = build_model(policy, setting)
    return replay(model), model, trace


def assert_equal(tally: Tally, counters: Counters, *, moved: tuple[int, int]) -> None:
    apart = dict.fromkeys(("late_batches", "planning_wait_s", "fetch_wait_s", "write_back_wait_s", "per_table"))
    assert replace(counters, **apart) == Counters(
        steps=tally.batches,
        lookups=tally.lookups,
        unique_ids=tally.unique_ids,
        unique_misses=tally.unique_misses,
        lookup_misses=tally.lookup_misses,
        rows_fetched=tally.rows_fetched,
        rows_written_back=tally.rows_written_back,
        bytes_fetched=moved[0],
        bytes_written_back=moved[1],
        overflow_batches=tally.overflow_batches,
    )


def assert_simulation_is_training(
    workload: SyntheticWorkload, parameters: dict[str, str], *, ratio: float, kind: OptimizerKind = OptimizerKind.SGD
) -> Tally:
    counters = trained(workload, parameters, ratio=ratio, kind=kind)
    policy = Variant("freq_cache", tuple(parameters.items()))
    tally, model, _ = simulated(workload, policy, ratio=ratio)
    row = RowBytes(weights=4 * DIM, optimizer=optimizer(kind), dim=DIM)
    assert_equal(tally, counters, moved=model.bytes_moved(tally, row))
    return tally


@pytest.mark.parametrize(
    ("policy", "look_ahead", "ratio"),
    [
        *(("static", "0", OVERFLOWING), ("static", "1", ROOMY), ("static", "16", CROWDED)),
        *(("lfu", "0", CROWDED), ("lfu", "1", OVERFLOWING), ("lfu", "16", ROOMY)),
        *(("lru", "0", ROOMY), ("lru", "1", CROWDED), ("lru", "16", OVERFLOWING)),
    ],
)
def test_simulated_cache_counts_what_the_trained_one_counts(policy: str, look_ahead: str, ratio: float) -> None:
    tally = assert_simulation_is_training(stream(), {"policy": policy, "look_ahead": look_ahead}, ratio=ratio)
    assert (tally.overflow_batches == tally.batches) == (ratio == OVERFLOWING)
    assert 0 < tally.unique_misses < tally.unique_ids


@pytest.mark.parametrize(
    ("policy", "ratio"), [("static", ROOMY), ("lfu", OVERFLOWING), ("lfu", CROWDED), ("lru", CROWDED)]
)
def test_simulated_level_of_ram_gives_and_takes_what_the_trained_one_does(policy: str, ratio: float) -> None:
    """Without look-ahead: else what is read ahead of an eviction depends on time."""
    workload = stream()
    total = slots_of(WorkloadTrace(workload).rows, ratio)
    parameters = {"policy": policy, "look_ahead": "0"}
    tally, _, trace = simulated(workload, Variant("freq_cache", (*parameters.items(), ("ram", "3"))), ratio=ratio)
    counters = trained(
        workload, parameters, ratio=(total // 4 + 0.5) / trace.rows, places=total - total // 4, kind=OptimizerKind.SGD
    )
    assert counters.rows_from_ram
    assert counters.rows_from_drive == tally.rows_fetched


@pytest.mark.parametrize("kind", [kind for kind in OptimizerKind if kind is not OptimizerKind.ADAM])
def test_bytes_have_the_optimizer_state_in_them(kind: OptimizerKind) -> None:
    assert_simulation_is_training(stream(), {"policy": "lfu", "look_ahead": "2"}, ratio=CROWDED, kind=kind)


@pytest.mark.parametrize("workload", [BAGS, stream("avazu@drift", 8)], ids=["bags", "drift"])
def test_streams_of_every_kind_are_counted_alike(workload: SyntheticWorkload) -> None:
    assert_simulation_is_training(workload, {"policy": "lru", "look_ahead": "4"}, ratio=CROWDED)


@pytest.mark.parametrize("look_ahead", ["0", "4"])
def test_batches_that_now_and_then_exceed_the_slots_are_counted_alike(look_ahead: str) -> None:
    """Rows changed beside the cache come home when the next batch is looked up, whether that is counted or not."""
    distinct = []
    for batch in range(STOP):
        parts = BAGS.batch(batch).features.to_dict().values()
        distinct.append(sum(part.values().unique().numel() for part in parts))
    ratio = (sorted(distinct)[STOP // 2] + 0.5) / WorkloadTrace(BAGS).rows
    tally = assert_simulation_is_training(BAGS, {"policy": "lfu", "look_ahead": look_ahead}, ratio=ratio)
    assert 0 < tally.overflow_batches < tally.batches


@pytest.mark.parametrize("workload", [stream(samples=8), BAGS], ids=["one id", "bags"])
@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_simulated_uvm_counts_what_the_systems_count(kind: OptimizerKind, workload: SyntheticWorkload) -> None:
    counter = UniqueCounter(tables_of(workload.tables, DIM))
    counter.enabled = True
    for index in range(WARMUP, STOP):
        counter.observe(workload.batch(index).features)
    tally, model, _ = simulated(workload, Variant("uvm"), ratio=CROWDED)
    row = RowBytes(weights=4 * DIM, optimizer=optimizer(kind), dim=DIM)
    assert_equal(tally, counter.uncached_uvm(optimizer(kind)), moved=model.bytes_moved(tally, row))
