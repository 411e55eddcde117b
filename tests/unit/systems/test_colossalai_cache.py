"""ColossalAI's cache as a system: rows that come and go train as in a plain table, and nothing of it leaks."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from suite.run.cell.training import tables_of
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build as build_model
from suite.simulate.trace import WorkloadTrace
from systems.colossalai_cache import ColossalAICache
from systems.contract import MemoryUse, OptimizerKind, Rows, SystemSpec, Tier, Verdict, WorkingSetTooLarge
from systems.reference import ReferenceSystem
from systems.registry import Variant
from tests.contract.scenes import assert_same, batch_of, snapshot, spec, table
from workloads.streams.synthetic import SyntheticWorkload

TABLES = (table("left", 60, 8), table("words", 80, 8), table("right", 40, 8, "seen", "bought"))
TEN = table("ten", 10, 4)


def setting(
    *tables: EmbeddingBagConfig, policy: str = "dataset", frequencies: Sequence[int] = (), **choices: object
) -> SystemSpec:
    counted = {t.name: list(frequencies) or list(range(t.num_embeddings))[::-1] for t in tables}
    return spec(*tables, device="cpu", lr=0.5, frequencies=counted, policy=policy, **{"gradients": "summed", **choices})


def drawn(seed: int) -> KeyedJaggedTensor:
    """Bags of up to two ids out of a fifth of every table that moves on with the seed, duplicates among them."""
    draw = torch.Generator().manual_seed(seed)

    def bag(rows: int) -> list[int]:
        length = int(torch.randint(0, 3, (), generator=draw))
        ids = torch.randint(0, rows // 5, (length,), generator=draw) + seed * rows // 7
        return (ids % rows).tolist()

    return batch_of({name: [bag(t.num_embeddings) for _ in range(12)] for t in TABLES for name in t.feature_names})


def whole(seed: int, *shape: int) -> Tensor:
    """Whole numbers: with a half as learning rate, sums are exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def loaded(system_class: type[ColossalAICache] | type[ReferenceSystem], spec: SystemSpec):
    system = system_class(spec)
    for number, t in enumerate(spec.tables):
        system.load_rows(t.name, 0, Rows(whole(number, t.num_embeddings, t.embedding_dim)))
    return system


@pytest.mark.parametrize("policy", ["dataset", "lfu"])
def test_rows_that_leave_and_return_train_as_in_plain_tables(policy: str) -> None:
    cached, plain = (loaded(kind, setting(*TABLES, policy=policy)) for kind in (ColossalAICache, ReferenceSystem))
    for seed in range(30):
        features = drawn(seed)
        ours, theirs = (system(features).values() for system in (cached, plain))
        assert torch.equal(ours, theirs)
        for pooled in (ours, theirs):
            pooled.backward(whole(seed, *pooled.shape))
        if seed == 10:  # rows of which some are in slots, some are not
            for system in (cached, plain):
                system.load_rows("right", 3, Rows(torch.full((30, 8), 7.0)))
        if seed == 20:
            cached.flush()
    assert_same(snapshot(cached), snapshot(plain))  # as slots have them
    found = cached.counters()
    assert found.rows_written_back > found.steps
    assert 0 < found.unique_misses < found.unique_ids
    cached.flush()
    assert_same(snapshot(cached), snapshot(plain))  # as the host has them
    manager = cached._manager  # what the library notes of every batch does not pile up
    assert not [*manager.num_hits_history, *manager.num_miss_history, *manager.num_write_back_history]


def test_gradients_taken_each_as_its_authors_do_round_differently_and_lose_nothing() -> None:
    each, summed = (loaded(ColossalAICache, setting(*TABLES, gradients=way)) for way in ("each", "summed"))
    for seed in range(10):
        for system in (each, summed):
            pooled = system(drawn(seed)).values()
            pooled.backward(torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed)))
    ours, theirs = snapshot(each), snapshot(summed)
    assert any(not torch.equal(ours[name], rows) for name, rows in theirs.items())
    assert_same(ours, theirs, within=1e-5)
    assert (each.sums_gradients, summed.sums_gradients) == (False, True)


@pytest.mark.parametrize("policy", ["dataset", "lfu"])
def test_simulated_policy_counts_what_the_cache_itself_counts(policy: str) -> None:
    """Frequencies without ties, as the simulation breaks them: torch takes equal ones as it likes, and equal counts."""
    workload = SyntheticWorkload.create("criteo_kaggle", batch_size=24, seed=3, max_rows=3000)
    trace = WorkloadTrace(workload)
    later = torch.arange(trace.rows - 1, -1, -1).split([rows for _, rows in trace.tables])
    frequencies = {
        name: workload.frequencies()[name] * trace.rows + order
        for (name, _), order in zip(trace.tables, later, strict=True)
    }
    asked = setting(*tables_of(workload.tables, 4), policy=policy, ratio=0.15, batch_lookups=workload.batch_lookups)
    system = ColossalAICache(replace(asked, frequencies=frequencies))
    for index in range(26):
        if index == 8:
            system.reset_counters()
        system(workload.batch(index).features).values().sum().backward()
    simulated = Setting(trace=trace, span=Span(counted_from=8, stop=26), slots=system.slots)
    tally = replay(build_model(Variant("colossalai", (("policy", policy),)), simulated))
    found = system.counters()
    assert found.rows_written_back > 100
    names = ("lookups", "unique_ids", "unique_misses", "lookup_misses", "rows_fetched", "rows_written_back")
    wanted = [getattr(tally, name) for name in names]
    assert [getattr(found, name) for name in names] == (pytest.approx(wanted, rel=0.01) if policy == "lfu" else wanted)


def test_batch_beyond_the_cache_is_refused_with_a_ratio_that_works_and_smaller_ones_go_on() -> None:
    system = ColossalAICache(setting(TEN))
    before = snapshot(system)
    with pytest.raises(WorkingSetTooLarge, match=r"6 distinct rows, .* 5 slots: .* cache ratio .* is 0\.6000"):
        system(batch_of({"ten": [[0, 1, 2, 3, 4, 5, 5]]}))
    assert_same(snapshot(system), before)
    system(batch_of({"ten": [[0, 1, 2, 3, 4]]}))
    ColossalAICache(setting(TEN, ratio=0.6))(batch_of({"ten": [[0, 1, 2, 3, 4, 5, 5]]}))


def test_what_it_lacks_is_said_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    adagrad, unranked = setting(TEN, kind=OptimizerKind.ADAGRAD), replace(setting(TEN), frequencies=None)
    for asked, remedy in ((adagrad, "optimizer state: use sgd"), (unranked, "policy=lfu")):
        answer = ColossalAICache.support(asked)
        assert answer.verdict is Verdict.UNSUPPORTED
        assert remedy in answer.reason
    assert ColossalAICache(replace(setting(TEN, policy="lfu"), frequencies=None)).prior_knowledge == "the past"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "colossalai" else found(name))
    answer = ColossalAICache.support(setting(TEN))
    assert answer.verdict is Verdict.UNAVAILABLE
    assert "not installed: colossalai; " in answer.reason
    assert "--no-deps" in answer.reason  # spares torch


def test_nothing_that_stands_in_for_cuda_or_for_packages_is_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    def all_of_it() -> list[object]:
        members = [vars(torch.cuda).get(name) for name in ("current_device", "synchronize")]
        return [*members, *(vars(Tensor).get(name) for name in ("cuda", "pin_memory"))]

    before = all_of_it()
    system = ColossalAICache(setting(TEN))
    system(batch_of({"ten": [[0, 1]]})).values().sum().backward()
    with pytest.raises(WorkingSetTooLarge):
        system(batch_of({"ten": [list(range(10))]}))
    assert all_of_it() == before
    assert "colossalai" not in sys.modules
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("policy", "a_slot"), [("dataset", 8), ("lfu", 16)])
def test_index_of_all_rows_is_on_the_device_and_in_a_budget(policy: str, a_slot: int) -> None:
    """Two maps of 8 B a row; of a slot its row, 8 B, with lfu its count; 16 B a feature for the concatenation."""
    features = sum(len(t.feature_names) for t in TABLES)
    system = ColossalAICache(setting(*TABLES, policy=policy))
    assert system.slots == 90
    anatomy = system.memory()
    assert anatomy[Tier.DEVICE, MemoryUse.INDEX] == 16 * 180 + a_slot * system.slots + 16 * features
    assert anatomy[Tier.DEVICE, MemoryUse.ROWS] == 32 * 90
    assert anatomy[Tier.HOST, MemoryUse.ROWS] == system.spec.row_bytes
    least = 16 * 180 + 16 * features + 32 + a_slot
    assert ColossalAICache.required_bytes(system.spec)[Tier.DEVICE] == least
    assert ColossalAICache(setting(*TABLES, policy=policy, total_bytes=least)).slots == 1
