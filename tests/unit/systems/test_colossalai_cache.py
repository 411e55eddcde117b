"""ColossalAI's cache as a system: rows that come and go train as in a plain table, and nothing of it leaks."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from specs import batch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

from suite.run.cell.training import tables_of
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build as build_model
from suite.simulate.trace import WorkloadTrace
from systems.colossalai_cache import ColossalAICache
from systems.contract import (
    Budget,
    CacheRatio,
    DeviceBytes,
    MemoryUse,
    OptimizerKind,
    Rows,
    SparseOptimizer,
    SystemSpec,
    Tier,
    Verdict,
    WorkingSetTooLarge,
)
from systems.reference import ReferenceSystem
from systems.registry import Variant
from workloads.streams.synthetic import SyntheticWorkload

POLICIES = ("dataset", "lfu")


def table(name: str, rows: int, dim: int, *features: str, mean: bool = False) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features or (name,)),
        pooling=PoolingType.MEAN if mean else PoolingType.SUM,
    )


TABLES = (
    table("left", 60, 8),
    table("words", 80, 8, mean=True),
    table("right", 40, 8, "seen", "bought"),
    table("wide", 50, 16),
)
"""Caches for sums of 8, means of 8 and sums of 16; the first holds two tables."""
TEN = table("ten", 10, 4)


def spec_of(
    *tables: EmbeddingBagConfig,
    policy: str = "dataset",
    budget: Budget | None = None,
    kind: OptimizerKind = OptimizerKind.SGD,
    frequencies: Sequence[int] | None = None,
) -> SystemSpec:
    counted = {t.name: torch.arange(t.num_embeddings).flip(0) for t in tables}
    if frequencies is not None:
        counted = {tables[0].name: torch.tensor(frequencies)}
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=kind, lr=0.5),
        device=torch.device("cpu"),
        budget=budget or CacheRatio(ratio=0.5),
        batch_lookups=64,
        frequencies=counted,
        parameters={"policy": policy, "gradients": "summed"},
    )


def drawn(seed: int) -> KeyedJaggedTensor:
    """Bags of up to two ids out of a fifth of every table that moves on with the seed, duplicates among them."""
    draw = torch.Generator().manual_seed(seed)

    def bag(rows: int) -> list[int]:
        length = int(torch.randint(0, 3, (), generator=draw))
        ids = torch.randint(0, rows // 5, (length,), generator=draw) + seed * rows // 7
        return (ids % rows).tolist()

    return batch({name: [bag(t.num_embeddings) for _ in range(12)] for t in TABLES for name in t.feature_names})


def whole(seed: int, *shape: int) -> Tensor:
    """Whole numbers: with halves as learning rate and means of two, sums are exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def everything(system: ColossalAICache | ReferenceSystem) -> dict[str, Tensor]:
    return {name: system.read_rows(name, torch.arange(t.num_embeddings)).weights for name, t in system.tables.items()}


def loaded(system_class: type[ColossalAICache] | type[ReferenceSystem], spec: SystemSpec):
    system = system_class(spec)
    for number, t in enumerate(spec.tables):
        system.load_rows(t.name, 0, Rows(whole(number, t.num_embeddings, t.embedding_dim)))
    return system


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, rows in theirs.items():
        torch.testing.assert_close(ours[name], rows, rtol=0, atol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_leave_and_return_train_as_in_plain_tables(policy: str) -> None:
    spec = spec_of(*TABLES, policy=policy)
    cached, plain = loaded(ColossalAICache, spec), loaded(ReferenceSystem, spec)
    for seed in range(30):
        features = drawn(seed)
        ours, theirs = (system(features).values() for system in (cached, plain))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        for pooled in (ours, theirs):
            pooled.backward(whole(seed, *pooled.shape))
        if seed == 10:  # rows of which some are in slots, some are not
            for system in (cached, plain):
                system.load_rows("right", 3, Rows(torch.full((30, 8), 7.0)))
        if seed == 20:
            cached.flush()
    assert_equal(everything(cached), everything(plain))  # as slots have them
    found = cached.counters()
    assert found.rows_written_back > found.steps
    assert 0 < found.unique_misses < found.unique_ids
    cached.flush()
    assert_equal(everything(cached), everything(plain))  # as the host has them


def look_up(system: ColossalAICache, *ids: int) -> tuple[int, int, int, int, int]:
    """What one batch adds to ids looked up, distinct rows, rows missed, ids missed, and rows written back."""
    system.reset_counters()
    with torch.no_grad():
        system(batch({"ten": [list(ids)]}))
    found = system.counters()
    assert found.rows_fetched == found.unique_misses
    assert found.bytes_fetched == 16 * found.rows_fetched
    assert found.bytes_written_back == 16 * found.rows_written_back
    return (
        found.lookups,
        found.unique_ids,
        found.unique_misses,
        found.lookup_misses,
        found.rows_written_back,
    )


def test_gradients_taken_each_as_its_authors_do_round_differently_and_lose_nothing() -> None:
    spec = spec_of(*TABLES)
    each = replace(spec, parameters={**spec.parameters, "gradients": "each"})
    systems = [loaded(ColossalAICache, one) for one in (each, spec)]
    for seed in range(10):
        for system in systems:
            pooled = system(drawn(seed)).values()
            pooled.backward(torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed)))
    (ours, theirs), rows = map(everything, systems), 0
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-5, atol=1e-5)
        rows += int((ours[name] != expected).any(dim=-1).sum())
    assert rows
    assert [system.sums_gradients for system in systems] == [False, True]


def test_dataset_keeps_the_most_frequent_rows_and_counts_what_moves() -> None:
    frequencies = [1, 9, 2, 8, 3, 7, 4, 6, 5, 0]  # by rank: rows 1 3 5 7 8 6 4 2 0 9
    system = ColossalAICache(spec_of(TEN, frequencies=frequencies))
    assert system.slots == 5
    # 70 % of 5 slots, rounded up, begin with the rows of the first ranks: 1 3 5 7
    assert look_up(system, 1, 3, 5, 7, 7) == (5, 4, 0, 0, 0)
    assert look_up(system, 9, 9) == (2, 1, 1, 2, 0)  # into the slot that is free
    assert look_up(system, 0) == (1, 1, 1, 1, 1)  # 9 leaves
    assert look_up(system, 9, 2, 0) == (3, 3, 2, 2, 2)  # 0 is needed: 7 and 5 leave
    assert look_up(system, 1, 3, 9) == (3, 3, 0, 0, 0)


def test_lfu_keeps_the_rows_used_most_and_begins_with_the_frequencies() -> None:
    system = ColossalAICache(spec_of(TEN, policy="lfu", frequencies=[0, 0, 9, 9, 9, 2, 0, 0, 0, 0]))
    assert look_up(system, 2, 3, 4, 5) == (4, 4, 0, 0, 0)  # counts 10 10 10 3
    assert look_up(system, 0, 0, 0, 0) == (4, 1, 1, 4, 0)  # 4
    assert look_up(system, 1) == (1, 1, 1, 1, 1)  # 5 leaves, a count of 1
    assert look_up(system, 0, 2, 3, 4, 1) == (5, 5, 0, 0, 0)
    assert look_up(system, 6) == (1, 1, 1, 1, 1)  # 1 leaves
    assert look_up(system, 1, 2, 3, 4, 0) == (5, 5, 1, 1, 1)  # 6 leaves


@pytest.mark.parametrize("name", ["criteo_kaggle", "avazu"])
def test_simulated_dataset_policy_counts_what_the_cache_itself_counts(name: str) -> None:
    """Frequencies without ties, as the simulation breaks them: torch sorts equal ones as it likes."""
    workload = SyntheticWorkload.create(name, batch_size=24, seed=3, max_rows=3000)
    trace = WorkloadTrace(workload)
    places = torch.arange(trace.rows - 1, -1, -1)
    by_table = places.split([rows for _, rows in trace.tables])
    frequencies = {
        table: workload.frequencies()[table] * trace.rows + later
        for (table, _), later in zip(trace.tables, by_table, strict=True)
    }
    spec = replace(
        spec_of(*tables_of(workload.tables, 4), budget=CacheRatio(ratio=0.15)),
        frequencies=frequencies,
        batch_lookups=workload.batch_lookups,
    )
    system = ColossalAICache(spec)
    for index in range(26):
        if index == 8:
            system.reset_counters()
        system(workload.batch(index).features).values().sum().backward()
    setting = Setting(trace=trace, span=Span(counted_from=8, stop=26), slots=system.slots)
    tally = replay(build_model(Variant("colossalai", (("policy", "dataset"),)), setting))
    found = system.counters()
    assert found.rows_written_back > 100
    assert (found.lookups, found.unique_ids, found.unique_misses, found.lookup_misses) == (
        tally.lookups,
        tally.unique_ids,
        tally.unique_misses,
        tally.lookup_misses,
    )
    assert (found.rows_fetched, found.rows_written_back) == (tally.rows_fetched, tally.rows_written_back)


def test_batch_beyond_the_cache_is_refused_with_a_ratio_that_works_and_smaller_ones_go_on() -> None:
    system = ColossalAICache(spec_of(TEN))
    before = everything(system)
    with pytest.raises(WorkingSetTooLarge, match=r"6 distinct rows, .* 5 slots .* cache ratio .* is 0\.6000"):
        system(batch({"ten": [[0, 1, 2, 3, 4, 5, 5]]}))
    assert_equal(everything(system), before)
    system(batch({"ten": [[0, 1, 2, 3, 4]]}))
    ColossalAICache(spec_of(TEN, budget=CacheRatio(ratio=0.6)))(batch({"ten": [[0, 1, 2, 3, 4, 5, 5]]}))


def test_what_it_lacks_is_said_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in set(OptimizerKind) - {OptimizerKind.SGD}:
        answer = ColossalAICache.support(spec_of(TEN, kind=kind))
        assert answer.verdict is Verdict.UNSUPPORTED
        assert "optimizer state: use sgd" in answer.reason
    dataset, lfu = (replace(spec_of(TEN, policy=policy), frequencies=None) for policy in POLICIES)
    answer = ColossalAICache.support(dataset)
    assert answer.verdict is Verdict.UNSUPPORTED
    assert "policy=lfu" in answer.reason
    assert ColossalAICache(lfu).prior_knowledge == "the past"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "colossalai" else found(name))
    answer = ColossalAICache.support(spec_of(TEN))
    assert answer.verdict is Verdict.UNAVAILABLE
    assert "colossalai" in answer.reason
    assert "--no-deps" in answer.reason  # spares torch


def test_nothing_that_stands_in_for_cuda_or_for_packages_is_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    def all_of_it() -> list[object]:
        members = [vars(torch.cuda).get(name) for name in ("current_device", "synchronize")]
        return [*members, *(vars(Tensor).get(name) for name in ("cuda", "pin_memory"))]

    before = all_of_it()
    system = ColossalAICache(spec_of(TEN))
    system(batch({"ten": [[0, 1]]})).values().sum().backward()
    with pytest.raises(WorkingSetTooLarge):
        system(batch({"ten": [list(range(10))]}))
    assert all_of_it() == before
    assert "colossalai" not in sys.modules
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("policy", "a_slot"), [("dataset", 8), ("lfu", 16)])
def test_index_of_all_rows_is_on_the_device_and_in_a_budget(policy: str, a_slot: int) -> None:
    """Two maps of 8 B a row; of a slot its row, 8 B, with lfu its count; 16 B a feature for the concatenation."""
    features = sum(len(t.feature_names) for t in TABLES)
    system = ColossalAICache(spec_of(*TABLES, policy=policy))
    assert system.slots == 50 + 40 + 25
    anatomy = system.memory()
    assert anatomy[Tier.DEVICE, MemoryUse.INDEX] == 16 * 230 + a_slot * system.slots + 16 * features
    assert anatomy[Tier.DEVICE, MemoryUse.ROWS] == 32 * 90 + 64 * 25
    assert anatomy[Tier.HOST, MemoryUse.ROWS] == system.spec.row_bytes
    least = 16 * 230 + 16 * features + 2 * (32 + a_slot) + 64 + a_slot
    assert ColossalAICache.required_bytes(system.spec)[Tier.DEVICE] == least
    one_each = ColossalAICache(spec_of(*TABLES, policy=policy, budget=DeviceBytes(total_bytes=least)))
    assert one_each.slots == 3


def test_what_it_notes_of_every_batch_does_not_pile_up() -> None:
    system = ColossalAICache(spec_of(TEN))
    for _ in range(5):
        system(batch({"ten": [[0, 9]]}))
    (cache,) = system._caches
    assert not cache._manager.num_hits_history
    assert not cache._manager.num_miss_history
    assert not cache._manager.num_write_back_history
