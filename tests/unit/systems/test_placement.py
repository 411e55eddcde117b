"""Which rank has which rows, and the sharded cache on one rank."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.sharded.by_torchrec import ShardedFullGPU
from systems.sharded.collection import ShardedCachedEmbeddingBagCollection, ShardedFreqCache
from systems.sharded.placement import Shard, expected_misses, place
from systems.torchrec_uvm import _ensure_process_group
from tests.contract.scenes import assert_same, ragged, snapshot, table, train


def tables(**rows):
    return [table(name, count, 4) for name, count in rows.items()]


def misses(**of_tables):
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in of_tables.items()}


def test_whole_tables_go_to_the_rank_that_has_least_the_largest_first():
    layout = place(tables(a=10, b=60, c=30, d=25), how="tables", ranks=2)
    assert layout == ((Shard("b", 0, 60),), (Shard("c", 0, 30), Shard("d", 0, 25), Shard("a", 0, 10)))


def test_rows_are_cut_into_equal_ranges_but_tables_with_fewer_rows_than_ranks():
    layout = place(tables(a=10, tiny=3), how="rows", ranks=4)
    assert [next(s for s in shards if s.table == "a") for shards in layout] == [
        Shard("a", 0, 2), Shard("a", 2, 3), Shard("a", 5, 2), Shard("a", 7, 3)
    ]  # fmt: skip
    assert [s for shards in layout for s in shards if s.table == "tiny"] == [Shard("tiny", 0, 3)]


def test_a_table_that_misses_more_than_a_share_is_cut_where_its_misses_are_even():
    found = misses(hot=[4, 1, 1, 1, 1], cold=[1, 0], colder=[0.5, 0.5])
    layout = place(tables(hot=5, cold=2, colder=2), how="misses", ranks=2, misses=found)
    assert [s for shards in layout for s in shards if s.table == "hot"] == [Shard("hot", 0, 1), Shard("hot", 1, 4)]
    shares = [sum(float(found[s.table][s.first : s.first + s.rows].sum()) for s in shards) for shards in layout]
    assert shares == [5.0, 5.0]


def test_every_row_has_one_owner_however_misses_lie():
    for values in ([9, 0, 0, 0], [0, 0, 0, 9], [1, 1, 1, 1]):
        layout = place(tables(a=4), how="misses", ranks=4, misses=misses(a=values))
        assert layout == tuple((Shard("a", row, 1),) for row in range(4))


@pytest.mark.parametrize(("system", "parameter"), [(ShardedFullGPU, "sharding"), (ShardedFreqCache, "placement")])
def test_whole_tables_on_more_ranks_are_refused_up_front(system, parameter, monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    spec = SystemSpec(
        tables=tuple(tables(a=4, b=4)),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        budget=CacheRatio(ratio=0.5),
        device=torch.device("cpu"),
        batch_lookups=8,
        parameters={name: values[0] for name, values in system.variants.items()},
    )
    whole = replace(spec, parameters={**spec.parameters, **system.whole_tables})
    assert f"{parameter}={system.whole_tables[parameter]} leaves some of 3 ranks without one of 2 tables" in " ".join(
        system.refusals(whole)
    )


def test_fewer_tables_than_ranks_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="leave some of 2 ranks without rows: cut tables by rows"):
        place(tables(a=10), how="tables", ranks=2)


def test_expected_misses_are_the_chance_that_a_batch_has_a_row_outside_the_cache():
    counted = {"a": torch.tensor([90, 10]), "b": torch.tensor([50, 30, 20])}
    found = expected_misses(tables(a=2, b=3), counted, cache_ratio=0.4, batch_lookups=20)  # 10 of each table
    assert found["a"].tolist() == pytest.approx([0, 1 - 0.9**10])
    assert found["b"].tolist() == pytest.approx([0, 1 - 0.7**10, 1 - 0.8**10])


def test_expected_misses_are_those_of_a_simulated_stream():
    generator = torch.Generator().manual_seed(0)
    counted = (1e6 / torch.arange(1, 501).double() ** 1.1).long()
    found = expected_misses(tables(a=500), {"a": counted}, cache_ratio=0.1, batch_lookups=64)["a"]
    chance = counted.double() / counted.sum()
    drawn = torch.stack([torch.multinomial(chance, 64, replacement=True, generator=generator) for _ in range(400)])
    missed = sum(batch[batch >= 50].unique().numel() for batch in drawn) / 400
    assert float(found.sum()) == pytest.approx(missed, rel=0.02)
    assert float(found[:50].sum()) == 0


def test_sharded_cache_takes_tables_of_several_widths_and_looks_up_what_the_cache_of_one_rank_does():
    _ensure_process_group(torch.device("cpu"))
    widths, sgd = (table("a", 30, 4), table("b", 20, 8)), SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)
    sharded = ShardedCachedEmbeddingBagCollection(widths, optimizer=sgd, cache_ratio=0.2, placement="rows")
    alone = CachedEmbeddingBagCollection(widths, optimizer=sgd, cache_ratio=0.2)
    for seed in range(4):
        batch = ragged(seed, widths)
        assert torch.equal(train(sharded, batch, seed), train(alone, batch, seed))
    assert_same(snapshot(sharded), snapshot(alone))
