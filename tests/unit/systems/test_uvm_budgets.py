"""fbgemm's cache arithmetic on CUDA, by hand: nothing is built, so any machine can check it."""

import pytest

from systems.contract import OptimizerKind, Tier
from systems.fbgemm.uvm import FbgemmUVM, FbgemmUVMCaching, cache_sets, slot_bytes, uvm_required_bytes
from systems.torchrec_uvm import TorchrecUVM, TorchrecUVMCaching
from tests.contract.scenes import spec, table

LRU = {"policy": "lru", "memory": "host_mapped", "prefetch": "off"}
LFU = {**LRU, "policy": "lfu"}
ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD

ONE, OTHER = table("one", 1000, 32), table("other", 600, 32)

LRU_SLOT = 4 * 32 + 8 + 8
"""A line of 32 floats, the row in it, its stamp."""


def test_slot_has_a_stamp_for_lru_and_a_lock_for_prefetching() -> None:
    assert slot_bytes(spec(ONE, OTHER, **LRU)) == LRU_SLOT
    assert slot_bytes(spec(ONE, **LFU)) == LRU_SLOT - 8
    assert slot_bytes(spec(ONE, **{**LRU, "prefetch": "on"})) == LRU_SLOT + 4


@pytest.mark.parametrize("system", [FbgemmUVM, TorchrecUVM])
def test_uvm_alone_needs_the_device_for_row_wise_state_only(system: type[FbgemmUVM]) -> None:
    rows = 4 * 1600 * 32
    assert system.required_bytes(spec(ONE, OTHER, **LRU)) == {Tier.DEVICE: 0, Tier.HOST: rows}
    assert system.required_bytes(spec(ONE, OTHER, kind=ADAGRAD, **LRU)) == {Tier.DEVICE: 4 * 1600, Tier.HOST: rows}
    with_adam = system.required_bytes(spec(ONE, OTHER, kind=OptimizerKind.ADAM, **LRU))
    assert with_adam == {Tier.DEVICE: 0, Tier.HOST: 3 * rows}


@pytest.mark.parametrize("system", [FbgemmUVMCaching, TorchrecUVMCaching])
def test_least_of_a_cache_is_its_index_and_one_set_of_32_slots(system: type[FbgemmUVMCaching]) -> None:
    def on_device(**parameters: str) -> int:
        return system.required_bytes(spec(ONE, OTHER, **parameters))[Tier.DEVICE]

    assert on_device(**LRU) == 4 * 1600 + 32 * LRU_SLOT
    assert on_device(**LFU) == 4 * 1600 + 8 * 1600 + 8 + 32 * (LRU_SLOT - 8)
    on_cpu = system.required_bytes(spec(ONE, device="cpu", kind=ADAGRAD, **LRU))
    assert on_cpu == {Tier.HOST: 4 * 32 * 1000 + 4 * 1000}


@pytest.mark.parametrize(("ratio", "sets"), [(0.001, 1), (0.032, 1), (0.033, 2), (0.5, 16), (1.0, 32)])
def test_sets_of_a_ratio_are_rounded_up_to_whole_sets(ratio: float, sets: int) -> None:
    assert cache_sets(spec(ONE, ratio=ratio, **LRU)) == sets


@pytest.mark.parametrize("parameters", [LRU, LFU], ids=["lru", "lfu"])
def test_byte_budget_buys_whole_sets_and_not_a_byte_too_many(parameters: dict[str, str]) -> None:
    def sets(total_bytes: int) -> int:
        return cache_sets(spec(ONE, total_bytes=total_bytes, **parameters))

    one_set = 32 * slot_bytes(spec(ONE, **parameters))
    least = uvm_required_bytes(spec(ONE, **parameters), caching=True)[Tier.DEVICE]
    for more in (0, 1, 7):
        assert (sets(least + more * one_set), sets(least + (more + 1) * one_set - 1)) == (1 + more, 1 + more)
    assert sets(10**12) == 32  # 1,024 slots for 1,000 rows


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 999, 12_345_678])
@pytest.mark.parametrize("sets", [1, 2, 100])
def test_load_factor_that_torchrec_is_given_makes_the_sets_that_fbgemm_is_given(rows: int, sets: int) -> None:
    """fbgemm rounds `rows * load_factor` up to whole sets."""
    wide = table("wide", rows, 32)
    wanted = min(sets, -(-rows // 32))
    least = uvm_required_bytes(spec(wide, **LRU), caching=True)[Tier.DEVICE]
    given = spec(wide, total_bytes=least + (sets - 1) * 32 * LRU_SLOT, **LRU)
    assert cache_sets(given) == wanted
    system = TorchrecUVMCaching.__new__(TorchrecUVMCaching)  # not built: its rows would take memory
    system.spec = given
    assert (int(rows * system.fused_parameters()["cache_load_factor"]) + 31) // 32 == wanted
