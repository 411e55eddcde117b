"""What is read off fbgemm's live objects, with stand-ins for those that only a CUDA device can build."""

from types import SimpleNamespace

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torchrec import PoolingType

from systems.contract import Counters, MemoryUse, OptimizerKind, SparseOptimizer, Tier
from systems.fbgemm.tbe import build_tbe, tbe_anatomy, tbe_states
from systems.fbgemm.tbe_system import TBEHolder
from systems.fbgemm.uvm import UVMCaching
from systems.unique_counter import UniqueCounter
from tests.contract.scenes import batch_of, spec, table

DEVICE, MANAGED = EmbeddingLocation.DEVICE, EmbeddingLocation.MANAGED
CACHING, HOST = EmbeddingLocation.MANAGED_CACHING, EmbeddingLocation.HOST


def placed(*locations: EmbeddingLocation, mapped: bool = False) -> SimpleNamespace:
    specs = [(10, 4, location, "compute device") for location in locations]
    on_cpu = HOST in locations
    return SimpleNamespace(embedding_specs=specs, uvm_host_mapped=mapped, use_cpu=on_cpu, prefetch_pipeline=False)


@pytest.mark.parametrize(
    ("tbes", "label", "offloads"),
    [
        ([placed(DEVICE)], "device", False),
        ([placed(MANAGED, mapped=True)], "uvm (host-mapped)", True),
        ([placed(CACHING)], "uvm with device cache (managed)", True),
        ([placed(DEVICE, CACHING, mapped=True)], "device + uvm with device cache (host-mapped)", True),
        ([placed(MANAGED), placed(HOST, mapped=True)], "host-resident", False),
    ],
)
def test_placement_is_read_off_the_live_specs(tbes: list[SimpleNamespace], label: str, offloads: bool) -> None:
    placement = TBEHolder.placement.fget(SimpleNamespace(tbes=tbes, host_rows_are=Tier.HOST))
    assert (placement.label, placement.offloads) == (label, offloads)


def with_stats(*stats: int, misses: int = 0) -> SimpleNamespace:
    """Statistics as fbgemm orders them: calls, ids, unique ids, unique misses, of which without a place, their ids."""
    return SimpleNamespace(uvm_cache_stats=torch.tensor(stats), cache_miss_counter=torch.tensor([1, misses]))


def counted(*tbes: SimpleNamespace, policy: str = "lru", kind: OptimizerKind = OptimizerKind.SGD) -> Counters:
    """After a batch of 4 ids of 3 rows."""
    counting = UniqueCounter([table("t", 100, 8)])
    counting.enabled = True
    counting.observe(batch_of({"t": [[1, 1, 2], [3]]}))
    setting = spec(table("t", 100, 8), kind=kind, policy=policy)
    return UVMCaching.counters(SimpleNamespace(tbes=tbes, spec=setting, _counter=counting))


def test_rank_without_tables_moves_no_rows() -> None:
    assert counted().rows_fetched == counted().bytes_fetched == 0


def test_lru_rows_with_a_place_move_once_and_others_at_every_use() -> None:
    # 40 misses, 10 of them without a place, looked up 25 times: 30 inserted, 25 read in forward, 10 in backward
    assert counted(with_stats(1, 100, 50, 40, 10, 25)) == Counters(
        steps=1,
        lookups=4,
        unique_ids=3,
        unique_misses=40,
        rows_fetched=30 + 25 + 10,
        rows_written_back=30 + 10,
        bytes_fetched=32 * 65,
        bytes_written_back=32 * 40,
    )


def test_caches_of_several_tbes_add_up() -> None:
    found = counted(with_stats(1, 9, 5, 5, 0, 0), with_stats(1, 9, 5, 3, 1, 2))
    assert (found.unique_misses, found.rows_fetched) == (8, 5 + (2 + 2 + 1))
    assert (found.bytes_fetched, found.bytes_written_back) == (32 * 10, 32 * 8)


@pytest.mark.parametrize(
    ("kind", "state"), [(OptimizerKind.ROWWISE_ADAGRAD, 0), (OptimizerKind.ADAGRAD, 32), (OptimizerKind.ADAM, 64)]
)
def test_state_that_is_not_row_wise_crosses_the_link_past_the_cache(kind: OptimizerKind, state: int) -> None:
    found = counted(with_stats(1, 100, 50, 40, 0, 0), kind=kind)
    assert found.bytes_fetched == found.bytes_written_back == 32 * 40 + 50 * state


def test_lfu_counts_misses_alone() -> None:
    lfu = counted(*(with_stats(0, 0, 0, 0, 0, 0, misses=misses) for misses in (7, 4)), policy="lfu")
    assert lfu == Counters(steps=1, lookups=4, unique_ids=3, unique_misses=11)


def test_anatomy_of_cached_tbes_by_hand() -> None:
    """Each 1,000 rows of 8 in UVM with row-wise state on the device, behind two sets of 32 slots with LRU stamps."""
    nothing = torch.zeros(0)
    tbe = SimpleNamespace(
        weights_dev=nothing,
        weights_uvm=torch.zeros(8000),
        weights_host=nothing,
        momentum1_dev=torch.zeros(1000),
        momentum1_uvm=nothing,
        momentum1_host=nothing,
        lxu_cache_weights=torch.zeros(64, 8),
        lxu_cache_state=torch.zeros(2, 32, dtype=torch.int64),
        lxu_state=torch.zeros(2, 32, dtype=torch.int64),
        lxu_cache_locking_counter=nothing,
        cache_index_table_map=torch.zeros(1000, dtype=torch.int32),
    )
    assert tbe_anatomy([tbe, tbe], host_rows_are=Tier.HOST) == {
        (Tier.HOST, MemoryUse.ROWS): 2 * 32_000,
        (Tier.DEVICE, MemoryUse.STATE): 2 * 4_000,
        (Tier.DEVICE, MemoryUse.ROWS): 2 * 64 * 32,
        (Tier.DEVICE, MemoryUse.INDEX): 2 * (64 * 8 + 64 * 8 + 4_000),
    }


def test_features_of_one_table_stand_together() -> None:
    optimizer, cpu = SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.1), torch.device("cpu")
    shapes = [(4, 4), (4, 4)]
    tbe = build_tbe(shapes, table_of_feature=[1, 1, 0], pooling=PoolingType.SUM, optimizer=optimizer, device=cpu)
    tbe(torch.tensor([1, 1, 2]), torch.arange(4)).sum().backward()  # two features ask for row 1
    assert tbe_states(tbe, 1)["sum"][1].tolist() == [4.0] * 4  # the sum of their gradients is squared
    with pytest.raises(ValueError, match=r"must stand together, not in the order \[0, 1, 0\]"):
        build_tbe(shapes, table_of_feature=[0, 1, 0], pooling=PoolingType.SUM, optimizer=optimizer, device=cpu)
