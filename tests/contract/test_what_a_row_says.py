"""What a row of the table says of its system: where its rows are, whose kernel it is here, and what it knew."""

from typing import Any

import pytest
import torch
from scenes import EVERY_VARIANT, KINDS, TABLES, UVM, VARIANTS, build, optimizer, ragged, started, train
from torch import Tensor

from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, MemoryUse, OptimizerKind, Tier
from systems.fbgemm.tbe import TBE
from systems.fbgemm.tbe_system import TBEHolder
from systems.fbgemm.uvm import FbgemmUVM

CPU = torch.device("cpu")
ALIKE = {
    "fbgemm_uvm": "full_gpu",
    "fbgemm_uvm[memory=managed]": "full_gpu",
    "fbgemm_uvm_caching": "full_gpu",
    "fbgemm_uvm_caching[policy=lfu]": "full_gpu",
    "fbgemm_uvm_caching[prefetch=on]": "full_gpu",
    "cpu_embeddings": "full_gpu",
    "torchrec_uvm_caching": "torchrec_uvm",
    "torchrec_uvm_caching[policy=lfu]": "torchrec_uvm",
}
"""System by system that computes the same on a CPU."""
UNUSED_ON_A_CPU = {
    # how UVM is allocated, what the cache evicts, and where its statistics go
    *("uvm_host_mapped", "cache_algorithm", "uvm_cache_stats", "local_uvm_cache_stats", "last_uvm_cache_print_state"),
    *("_non_persistent_buffers_set", "uuid", "_debug_print_input_stats"),
}


def facts(tbe: TBE) -> dict[str, object]:
    """Every attribute of a TBE that a CPU uses; of tensors all but the values of rows, which torchrec draws."""
    found: dict[str, Any] = {**vars(tbe), **dict(tbe.named_buffers()), **dict(tbe.named_parameters())}
    for name in ("_buffers", "_parameters"):
        del found[name]
    return {name: _fact(value, name) for name, value in found.items() if name not in UNUSED_ON_A_CPU}


def _fact(value: object, name: str) -> object:
    if isinstance(value, dict):  # hooks are kept under numbers drawn by the process
        return list(value.values()) if name.endswith("_hooks") else repr(value)
    if not isinstance(value, Tensor):
        return repr(value)
    values = None if name == "weights_host" else value.tolist()
    return value.dtype, value.shape, value.device, value.requires_grad, values


@pytest.mark.parametrize("kind", [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD])
@pytest.mark.parametrize(("one", "other"), ALIKE.items())
def test_systems_that_compute_alike_on_a_cpu_have_equal_tbes(one: str, other: str, kind: OptimizerKind) -> None:
    ours, theirs = (build(name, device=CPU, kind=kind) for name in (one, other))
    assert isinstance(ours, TBEHolder)
    assert isinstance(theirs, TBEHolder)
    assert [facts(tbe) for tbe in ours.tbes] == [facts(tbe) for tbe in theirs.tbes]


@pytest.mark.parametrize("name", dict.fromkeys([*registry.ALL, *ALIKE, "torchrec_uvm_caching[prefetch=on]"]))
def test_row_says_whose_kernel_its_system_is_which_on_a_gpu_is_always_its_own(name: str, device: torch.device) -> None:
    expected = ALIKE.get(name) if device.type == "cpu" else None
    assert build(name, device=device).placement.same_kernel_as == expected


def test_distinct_systems_are_on_a_cpu_those_that_compute_as_no_other() -> None:
    assert [name for name in registry.ALL if name not in ALIKE] == [
        str(one) for one in registry.parse_systems("distinct")
    ]


def test_subclass_that_may_do_more_computes_as_no_other() -> None:
    class Slower(FbgemmUVM):
        """Might do anything in its forward."""

    assert Slower(build("fbgemm_uvm", device=CPU).spec).placement.same_kernel_as is None


@pytest.mark.parametrize(
    ("name", "knew", "busy"),
    [
        ("full_gpu", "nothing", False),
        ("no_embeddings", "nothing", False),
        ("freq_cache", "training frequencies", False),
        ("freq_cache[policy=lfu]", "the past", False),
        ("colossalai_cache[policy=lfu]", "training frequencies, the past", False),
        ("freq_cache[policy=lru,look_ahead=1]", "the past, next batch", True),
        ("freq_cache[look_ahead=16]", "training frequencies, next 16 batches", True),
        ("freq_cache[tier=file]", "training frequencies", True),
        ("hot_split", "training frequencies", False),
    ],
)
def test_row_says_what_its_system_knew_and_whether_it_works_between_steps(
    name: str, knew: str, busy: bool, device: torch.device
) -> None:
    system = build(name, device=device)
    assert (system.prior_knowledge, system.busy_between_steps) == (knew, busy)


@pytest.mark.parametrize("name", ["fbgemm_uvm_caching", "torchrec_uvm_caching"])
def test_cache_in_front_of_uvm_knows_the_past_where_there_is_one(name: str, device: torch.device) -> None:
    plain, prefetching = (build(f"{name}[prefetch={choice}]", device=device) for choice in ("off", "on"))
    on_cpu = device.type == "cpu"
    assert (plain.slots == 0) is on_cpu
    assert plain.prior_knowledge == ("nothing" if on_cpu else "the past")
    assert prefetching.prior_knowledge == ("nothing" if on_cpu else "the past, next batch")
    pipelined = name.startswith("torchrec") and not on_cpu
    assert (plain.busy_between_steps, prefetching.busy_between_steps) == (pipelined, not on_cpu)


def bytes_of(system: EmbeddingSystem, purpose: MemoryUse) -> dict[Tier, int]:
    return {tier: n for (tier, what), n in system.memory().items() if what is purpose and n}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["reference", "full_gpu", *UVM])
def test_systems_without_a_cache_of_ours_keep_each_row_once(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system = build(variant, device=device, kind=kind)
    tier = Tier.HOST if variant in UVM else Tier.DEVICE
    weights = 4 * 16 * sum(t.num_embeddings for t in TABLES)
    state = sum(t.num_embeddings * optimizer(kind).state_bytes(t.embedding_dim) for t in TABLES)
    assert bytes_of(system, MemoryUse.ROWS)[tier] == weights
    if variant not in UVM or device.type == "cpu":  # a GPU has row-wise state and the cache
        assert bytes_of(system, MemoryUse.ROWS) == {tier: weights}
        assert bytes_of(system, MemoryUse.STATE) == ({tier: state} if state else {})


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_does_not_grow_with_training(variant: str, device: torch.device) -> None:
    system = started(variant, device, budget=CacheRatio(ratio=1.0))
    before = system.memory()
    for seed in range(3):
        train(system, ragged(seed), seed)
    assert system.memory() == before


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_offload_systems_say_so_and_on_a_cpu_only_rows_on_a_drive_are_offloaded(
    variant: str, device: torch.device
) -> None:
    placement = build(variant, device=device).placement
    if device.type == "cuda":
        assert placement.offloads == (variant not in ("reference", "full_gpu"))
        return
    assert (placement.label == "host-resident") == (variant in UVM or variant == "cpu_embeddings")
    assert placement.label
    assert "device" not in placement.label
    assert placement.offloads == (variant in ("mapped_table", "rocksdb_table"))
