"""The kernels that a CPU looks up and updates slots with: the same numbers as fbgemm's, however the work is shared."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from torch import Tensor
from torchrec import PoolingType

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache.cpu_kernels import KINDS, Distinct
from systems.freq_cache.pool import RowPool
from systems.freq_cache.tiers.layout import RowLayout

pytestmark = pytest.mark.usefixtures("work_in_parts")
SLOTS = 40
FBGEMM = next(dist.version for dist in metadata.distributions() if (dist.name or "").startswith("fbgemm"))
LR = 0.1 if Version(FBGEMM) >= Version("1.8") else 0.125
"""Before 1.8 fbgemm rounded the step before it subtracted it; a power of two leaves nothing to round."""


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def pool(kind: OptimizerKind, dim: int, table_of_feature: list[int], *, own_kernels: bool) -> RowPool:
    optimizer = SparseOptimizer(kind=kind, lr=LR, eps=1e-4)
    made = RowPool(
        slots=SLOTS,
        layout=RowLayout(dim, torch.float32, optimizer.state_shapes(dim)),
        table_of_feature=table_of_feature,
        pooling=PoolingType.SUM,
        optimizer=optimizer,
        device=torch.device("cpu"),
        own_kernels=own_kernels,
    )
    made.weights.copy_(torch.randn(SLOTS, dim, generator=torch.Generator().manual_seed(0)))
    return made


def batch(table_of_feature: list[int], samples: int, seed: int) -> tuple[Tensor, Tensor, Distinct]:
    """Bags of 0 to 3 slots; tables have slots of their own."""
    generator = torch.Generator().manual_seed(seed)
    tables = table_of_feature[-1] + 1
    order = torch.randperm(SLOTS, generator=generator).tensor_split(tables)
    slots, lengths = [], []
    for table in table_of_feature:
        counts = torch.randint(0, 4, (samples,), generator=generator)
        lengths.append(counts)
        picked = torch.randint(0, order[table].numel(), (int(counts.sum()),), generator=generator)
        slots.append(order[table][picked])
    ids = torch.cat(slots).int()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
    number: dict[int, int] = {}
    inverse = torch.tensor([number.setdefault(slot, len(number)) for slot in ids.tolist()], dtype=torch.int32)
    return ids, offsets, Distinct(torch.tensor(list(number), dtype=torch.int32).numpy(), inverse.numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table_of_feature", [[0], [0, 0, 1], [0, 1, 2, 3, 4, 5, 5]], ids=["one", "two", "many tables"])
@pytest.mark.parametrize("dim", [4, 12, 32, 44])
def test_training_is_that_of_fbgemm(kind: OptimizerKind, table_of_feature: list[int], dim: int, threads: int) -> None:
    ours, theirs = (pool(kind, dim, table_of_feature, own_kernels=own) for own in (True, False))
    for step in range(4):
        ids, offsets, distinct = batch(table_of_feature, samples=9, seed=step)
        gradient = torch.randn(9, dim * len(table_of_feature), generator=torch.Generator().manual_seed(step))
        pooled = [made.look_up(ids, offsets, None, distinct) for made in (ours, theirs)]
        if kind is OptimizerKind.SGD:
            assert torch.equal(*pooled)
        torch.testing.assert_close(*pooled, rtol=1e-5, atol=1e-5)
        for answer in pooled:
            answer.backward(gradient)
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-5, atol=1e-5)
    for name, state in ours.state.items():
        torch.testing.assert_close(state, theirs.state[name], rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(0, 6), features=st.integers(1, 4), seed=st.integers(0, 1000))
def test_sums_are_those_of_plain_arithmetic(samples: int, features: int, seed: int) -> None:
    table_of_feature = list(range(features))
    made = pool(OptimizerKind.SGD, 8, table_of_feature, own_kernels=True)
    made.weights.copy_(torch.randint(-8, 8, made.weights.shape).float())
    before = made.weights.clone()
    ids, offsets, distinct = batch(table_of_feature, samples, seed)
    pooled = made.look_up(ids, offsets, None, distinct)
    gradient = torch.randint(-4, 4, pooled.shape).float()
    expected, change = torch.zeros(samples, features, 8), torch.zeros_like(before)
    for bag in range(samples * features):
        feature, sample = divmod(bag, samples)
        for slot in ids[offsets[bag] : offsets[bag + 1]].tolist():
            expected[sample, feature] += before[slot]
            change[slot] += gradient.view(samples, features, 8)[sample, feature]
    assert torch.equal(pooled, expected.flatten(1))
    pooled.backward(gradient)
    torch.testing.assert_close(made.weights, before - LR * change, rtol=1e-6, atol=1e-6)


def test_lookup_without_gradients_leaves_the_rows_alone() -> None:
    made = pool(OptimizerKind.SGD, 8, [0], own_kernels=True)
    before = made.weights.clone()
    with torch.no_grad():
        assert not made.look_up(*batch([0], 5, 0)[:2], None, batch([0], 5, 0)[2]).requires_grad
    assert torch.equal(made.weights, before)


def test_learning_rate_is_that_of_the_lookup() -> None:
    made = pool(OptimizerKind.SGD, 8, [0], own_kernels=True)
    before = made.weights.clone()
    ids, offsets, distinct = batch([0], 5, 0)
    pooled = made.look_up(ids, offsets, None, distinct)
    made.set_hyper_parameters({"lr": 100.0})
    pooled.backward(torch.ones_like(pooled))
    assert (before - made.weights).abs().max() < 5
