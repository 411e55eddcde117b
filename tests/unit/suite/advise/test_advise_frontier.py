"""The smallest device on which a system trains."""

from __future__ import annotations

import pytest
import torch
from advise_scenes import TABLES, case
from torchrec import KeyedJaggedTensor

from suite.advise.case import Case
from suite.advise.frontier import frontier, least_embedding_bytes
from systems import registry
from systems.contract import DeviceBytes, WorkingSetTooLarge
from systems.registry import Variant

LARGEST = 150


def _train(found: Case, budget: int) -> None:
    """One batch of `LARGEST` distinct rows within a byte budget."""
    sized = found.with_budget(DeviceBytes(total_bytes=budget))
    system = registry.load(Variant.parse(found.system))(sized.spec)
    ids = torch.cat([torch.arange(64) % 64, torch.arange(64) % 66, torch.arange(64) % 22 % 20])
    assert sum(ids[64 * t : 64 * t + 64].unique().numel() for t in range(3)) == 148
    ids[2 * 64 - 1] = 299
    names = [name for name, _ in TABLES]
    pooled = system(KeyedJaggedTensor.from_offsets_sync(names, ids, torch.arange(193))).values()
    pooled.backward(torch.ones_like(pooled))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_own_cache_trains_at_its_frontier_and_not_with_a_row_less(optimizer: str) -> None:
    found = case("freq_cache[policy=lru]", optimizer=optimizer)
    least = least_embedding_bytes(found, largest=148)
    _train(found, least)
    with pytest.raises(WorkingSetTooLarge):
        _train(found, least - found.record_bytes)


def test_frontier_adds_the_model_and_names_what_dominates() -> None:
    found = frontier(case("freq_cache[policy=lru]"), largest=LARGEST)
    whole = case("freq_cache[policy=lru]")
    assert found.device_bytes is not None
    embeddings = least_embedding_bytes(whole, largest=LARGEST)
    assert embeddings - whole.record_bytes < found.device_bytes - whole.shape.model_bytes <= embeddings
    assert found.dominated_by == "model and activations"
    resident = frontier(case("full_gpu", batch_size=1), largest=3)
    assert resident.dominated_by == "all rows"
    assert resident.device_bytes == 820 * 64 + case("full_gpu", batch_size=1).shape.model_bytes


def test_uvm_trains_with_next_to_nothing_but_counts_every_row() -> None:
    plain = frontier(case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad"), largest=LARGEST)
    of = case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad").shape
    assert plain.device_bytes == 4 * 820 + of.model_bytes
    assert plain.host_bytes == 820 * 64
    cached = frontier(case("fbgemm_uvm_caching", device="cuda"), largest=LARGEST)
    assert cached.device_bytes == 4 * 820 + 32 * (64 + 16) + case("full_gpu").shape.model_bytes


def test_system_that_never_trains_says_why() -> None:
    found = frontier(case("full_gpu", optimizer="adam"), largest=LARGEST)
    assert found.device_bytes is None
    assert "no Adam on a CPU" in found.why
