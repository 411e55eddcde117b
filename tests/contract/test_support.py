"""What systems refuse, with which reason, and which byte budgets they keep within."""

import re
from dataclasses import replace

import pytest
import torch
from scenes import (
    CACHES,
    EVERY_VARIANT,
    KINDS,
    MUST_HOLD_A_BATCH,
    TABLES,
    UNIFORM,
    UVM,
    batch_of,
    optimizer,
    ragged,
    runnable,
    spec_of,
    table,
    train,
)
from torchrec import EmbeddingBagConfig

from systems.contract import DeviceBytes, EmbeddingSystem, OptimizerKind, SystemSpec, Tier, Verdict, WorkingSetTooLarge
from systems.no_embeddings import NoEmbeddings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD
LOPSIDED = (table("many", 990, 4), table("few", 10, 64), table("one", 1, 8))
NEED_THE_DEVICE = ["reference", "full_gpu", "hot_split", *CACHES, *MUST_HOLD_A_BATCH]
"""Systems that ask for device bytes, most of them even where the device is a CPU."""
if torch.cuda.is_available():
    NEED_THE_DEVICE += [variant for variant in UVM if "caching" in variant]


def with_bytes(spec: SystemSpec, total: int) -> SystemSpec:
    return replace(spec, budget=DeviceBytes(total_bytes=total))


def named_bytes(reason: str) -> int:
    """The smallest budget that a refusal names."""
    found = re.search(r"smallest (?:budget )?that works (?:for it )?is ([\d,]+) bytes", reason)
    assert found, reason
    return int(found[1].replace(",", ""))


def device_bytes(system: EmbeddingSystem) -> int:
    return sum(count for (tier, _), count in system.memory().items() if tier is Tier.DEVICE)


@pytest.mark.parametrize("variant", EVERY_VARIANT)
@pytest.mark.parametrize("kind", [OptimizerKind.SGD, ADAGRAD])
@pytest.mark.parametrize("where", [CPU, CUDA], ids=str)
def test_budget_too_small_is_infeasible_and_names_the_smallest_that_works(
    variant: str, kind: OptimizerKind, where: torch.device
) -> None:
    system, spec = spec_of(variant, device=where, kind=kind)
    needed = system.required_bytes(spec).get(Tier.DEVICE, 0)
    refused = system.support(with_bytes(spec, 1))
    if refused.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"{variant}: {refused.reason}")
    if not needed:
        assert refused.verdict is Verdict.YES  # rows are read in place, none of them on the device
        return
    assert refused.verdict is Verdict.INFEASIBLE
    smallest = named_bytes(refused.reason)
    assert smallest == needed
    assert system.support(with_bytes(spec, smallest)).verdict is Verdict.YES
    assert system.support(with_bytes(spec, smallest - 1)).verdict is Verdict.INFEASIBLE
    with pytest.raises(ValueError, match="smallest that works"):
        system(with_bytes(spec, smallest - 1))


@pytest.mark.parametrize("variant", NEED_THE_DEVICE)
@pytest.mark.parametrize("kind", [OptimizerKind.SGD, ADAGRAD])
@pytest.mark.parametrize("tables", [TABLES, UNIFORM, LOPSIDED], ids=["odd", "two", "lopsided"])
def test_device_memory_stays_within_the_byte_budget_which_a_cache_spends(
    variant: str, kind: OptimizerKind, tables: tuple[EmbeddingBagConfig, ...], device: torch.device
) -> None:
    system, spec = runnable(variant, device=device, kind=kind, tables=tables, batch_lookups=64)
    least = system.required_bytes(spec)[Tier.DEVICE]
    for share in (0.0, 0.01, 0.3, 0.9, 4.0):
        budget = least + int(share * (spec.row_bytes + spec.state_bytes))
        assert device_bytes(system(with_bytes(spec, budget))) <= budget
    if variant in MUST_HOLD_A_BATCH + CACHES and kind is OptimizerKind.SGD and tables is not TABLES:
        # what a share cannot spend is less than one row of each width with its way in and out, or lies with a table
        # that fits whole
        unspent = sum({3 * 4 * t.embedding_dim for t in tables}) + (4 * 64 * 10 if tables is LOPSIDED else 0)
        budget = least + spec.row_bytes // 2
        assert device_bytes(system(with_bytes(spec, budget))) > budget - unspent


@pytest.mark.parametrize("variant", [*CACHES, *MUST_HOLD_A_BATCH])
@pytest.mark.parametrize("tables", [UNIFORM, TABLES, LOPSIDED], ids=["two", "odd", "lopsided"])
def test_batch_beyond_a_byte_budget_is_refused_naming_the_smallest_that_works(
    variant: str, tables: tuple[EmbeddingBagConfig, ...], device: torch.device
) -> None:
    system, spec = runnable(variant, device=device, tables=tables, batch_lookups=64)
    every_row = batch_of({f: [list(range(t.num_embeddings))] for t in tables for f in t.feature_names})
    budget = system.required_bytes(spec)[Tier.DEVICE]
    refusals = 0
    while True:
        built = system(with_bytes(spec, budget))
        try:
            train(built, every_row)
            break
        except WorkingSetTooLarge as refusal:
            refusals += 1
            named = named_bytes(str(refusal))
            assert named > budget
            with pytest.raises(WorkingSetTooLarge):
                train(system(with_bytes(spec, named - 1)), every_row)
            budget = named
    assert 1 <= refusals <= 3  # at most one for each cache
    assert device_bytes(built) <= budget


@pytest.mark.parametrize("variant", [*CACHES, *MUST_HOLD_A_BATCH])
def test_refused_batch_leaves_rows_as_they_were_and_smaller_batches_go_on(variant: str, device: torch.device) -> None:
    system, spec = spec_of(variant, device=device, tables=UNIFORM, batch_lookups=8)
    budget = system.required_bytes(spec)[Tier.DEVICE] + 5 * 32
    unharmed, refused = (system(with_bytes(spec, budget)) for _ in range(2))
    small = batch_of({"left": [[3], [36]], "right_1": [[0], [18]], "right_2": [[], [0]]})
    with pytest.raises(WorkingSetTooLarge):
        train(refused, ragged(0, UNIFORM, batch=64))
    for built in (unharmed, refused):
        train(built, small)
    for name in ("left", "right"):
        ids = torch.arange(built.tables[name].num_embeddings)
        assert torch.equal(unharmed.read_rows(name, ids).weights, refused.read_rows(name, ids).weights)


@pytest.mark.parametrize(
    ("variant", "where", "change", "remedy"),
    [
        *(
            (variant, CPU, {"optimizer": optimizer(OptimizerKind.ADAM)}, "Adam on a CPU: use sgd, rowwise_adagrad")
            for variant in EVERY_VARIANT
            if variant not in ("reference", "colossalai_cache")
        ),
        ("freq_cache", CPU, {"frequencies": None}, "policy=lfu"),
        ("hot_split", CPU, {"frequencies": None}, "policy=lfu"),
        ("fbgemm_uvm_caching[policy=lfu,prefetch=on]", CUDA, {}, "policy=lru"),
        ("torchrec_uvm_caching[policy=lfu,prefetch=on]", CUDA, {}, "policy=lru"),
    ],
)
def test_what_a_system_cannot_do_is_unsupported_with_a_remedy(
    variant: str, where: torch.device, change: dict[str, object], remedy: str
) -> None:
    system, spec = spec_of(variant, device=where)
    answer = system.support(replace(spec, **change))
    assert answer.verdict is Verdict.UNSUPPORTED
    assert remedy in answer.reason


def test_what_needs_no_frequencies_runs_without_and_the_reference_has_adam_on_a_cpu() -> None:
    lfu, spec = spec_of("freq_cache[policy=lfu]", device=CPU)
    assert lfu.support(replace(spec, frequencies=None)).verdict is Verdict.YES
    reference, spec = spec_of("reference", device=CPU, kind=OptimizerKind.ADAM)
    assert reference.support(spec).verdict is Verdict.YES


def test_system_that_cannot_change_its_learning_rate_says_so_by_name(device: torch.device) -> None:
    class Fixed(NoEmbeddings):
        set_learning_rate = EmbeddingSystem.set_learning_rate

    with pytest.raises(NotImplementedError, match="Fixed cannot change its learning rate"):
        Fixed(spec_of("reference", device=device)[1]).set_learning_rate(0.1)


@pytest.mark.parametrize("variant", EVERY_VARIANT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [CPU, CUDA], ids=str)
def test_support_and_required_bytes_build_nothing(variant: str, kind: OptimizerKind, where: torch.device) -> None:
    system, spec = spec_of(variant, device=where, kind=kind, tables=UNIFORM)
    spec = replace(spec, tables=tuple(table(f"t{i}", 10**12, 128) for i in range(3)))
    assert isinstance(system.support(spec).reason, str)
    needed = system.required_bytes(spec)
    assert all(isinstance(tier, Tier) and isinstance(count, int) for tier, count in needed.items())
    assert sum(needed.values()) >= 3 * 10**12 * 128 * 4
