"""Rows kept in fp16 and batches with per-sample weights: taken by our cache, refused with a reason elsewhere."""

import pytest
import torch
from scenes import (
    CACHES,
    EVERY_VARIANT,
    TOLERANCE,
    UNIFORM,
    assert_rows_match,
    assert_same,
    batch_of,
    gradient_like,
    on_its_side,
    optimizer,
    ragged,
    runnable,
    snapshot,
    spec_of,
    started,
    table,
    trained,
)
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from systems.contract import MemoryUse, OptimizerKind, Rows, Tier, Verdict
from tests.contract.plain_training import PlainTraining

ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD

MIXED = (
    table("users", 41, 16, "clicked", "bought", half=True),
    table("colours", 7, 4),
    table("words", 29, 8, mean=True, half=True),
    table("one_row", 1, 4, half=True),
    table("shops", 23, 16),
)
"""Every width and pooling in fp16, tables of fp32 in between."""
HALF = ("users", "words", "one_row")
SINGLE = tuple(table(t.name, t.num_embeddings, t.embedding_dim, *t.feature_names) for t in MIXED)
"""The same in fp32, all pooled by sum."""


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_half_rows_and_weights_are_taken_or_refused_with_a_reason(variant: str, device: torch.device) -> None:
    runnable(variant, device=device, tables=UNIFORM)  # this device takes the system, whatever it says of the rest
    for choices, reason in (({"tables": MIXED}, "users, words, one_row"), ({"weighted": True}, "per-sample weights")):
        system, spec = spec_of(variant, device=device, **choices)
        answer = system.support(spec)
        assert answer.verdict is (Verdict.YES if variant in CACHES else Verdict.UNSUPPORTED)
        assert reason in answer.reason or variant in CACHES


@pytest.mark.parametrize("variant", CACHES)
def test_half_rows_are_rounded_when_loaded_and_read_and_pooled_in_fp32(variant: str, device: torch.device) -> None:
    system = started(variant, device, tables=MIXED)
    assert system.memory()[Tier.HOST, MemoryUse.ROWS] == 2 * (41 * 16 + 29 * 8 + 1 * 4) + 4 * (7 * 4 + 23 * 16)
    values = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    for name in ("users", "shops"):
        system.load_rows(name, 3, Rows(values))
    half = system.read_rows("users", torch.arange(3, 8)).weights
    assert half.dtype == torch.float32
    assert torch.equal(half, values.half().float())
    assert torch.equal(system.read_rows("shops", torch.arange(3, 8)).weights, values)
    system.load_rows("users", 0, Rows(torch.tensor([[1024.0] * 16, [0.25] * 16])))
    empty = {name: [[]] for t in MIXED for name in t.feature_names}
    with torch.no_grad():
        pooled = system(on_its_side(system, batch_of({**empty, "clicked": [[0, 1]]})))["clicked"]
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled.cpu(), torch.full((1, 16), 1024.25))  # fp16 would say 1024


@pytest.mark.parametrize("variant", CACHES)
def test_half_rows_are_saved_as_such_and_loaded_into_tables_of_both_types(variant: str, device: torch.device) -> None:
    steady = trained(variant, device, tables=MIXED)
    saved = steady.state_dict()
    kept = {name: saved[f"embedding_bags.{name}.weight"].dtype for name in steady.tables}
    assert kept == {t.name: torch.float16 if t.name in HALF else torch.float32 for t in MIXED}
    assert all(value.dtype == torch.float32 for key, value in saved.items() if "sum" in key)
    single = started(variant, device, tables=SINGLE, seed=5)
    fine = snapshot(single)
    single.load_state_dict(steady.state_dict())
    assert_same(snapshot(single), snapshot(steady))
    steady.load_state_dict({f"embedding_bags.{name}": value for name, value in fine.items()})
    halves = {f"{name}.weight" for name in HALF}
    rounded = {name: value.half().float() if name in halves else value for name, value in fine.items()}
    assert_same(snapshot(steady), rounded)


def gradient_of_weights(plain: PlainTraining, batch: KeyedJaggedTensor, gradients: dict[str, Tensor]) -> Tensor:
    """Gradient at the weights of a batch, in its order, by `torch.nn.functional.embedding_bag`."""
    weights = batch.weights().detach().clone().requires_grad_()
    pieces = dict(zip(batch.keys(), weights.split(batch.length_per_key()), strict=True))
    for t in plain.tables:
        for name in t.feature_names:
            part = batch[name]
            pooled = nn.functional.embedding_bag(
                part.values(), plain.weights[t.name].float(), part.offsets(), mode="sum",
                per_sample_weights=pieces[name], include_last_offset=True,
            )  # fmt: skip
            (pooled * gradients[name]).sum().backward(retain_graph=True)
    assert weights.grad is not None
    return weights.grad


@pytest.mark.parametrize("variant", CACHES)
@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "fp16 among fp32"])
def test_gradient_arrives_at_the_weights(variant: str, mixed: bool, device: torch.device) -> None:
    """Whatever the order of keys, and features of no table among them; batches without weights are refused."""
    tables = tuple(t for t in MIXED if t.name != "words") if mixed else SINGLE
    system = started(variant, device, tables=tables, weighted=True)
    plain = PlainTraining(tables, optimizer(ADAGRAD))
    strangers = (table("stranger", 5, 4), *tables)
    for seed, (around, shuffle) in enumerate([(tables, False), (tables, True), (strangers, True)]):
        drawn = ragged(seed, around, weighted=True, shuffle_keys=shuffle)
        weights = drawn.weights().clone().requires_grad_()
        batch = KeyedJaggedTensor(drawn.keys(), drawn.values(), weights, lengths=drawn.lengths())
        pooled = system(on_its_side(system, batch))
        upstream = gradient_like(pooled.values(), seed)
        (pooled.values() * upstream.to(device)).sum().backward()
        by_feature = dict(zip(pooled.keys(), upstream.split(pooled.length_per_key(), dim=1), strict=True))
        expected = gradient_of_weights(plain, drawn, by_feature)
        assert weights.grad is not None
        torch.testing.assert_close(weights.grad, expected, rtol=1e-4, atol=1e-4 if not mixed else 2e-2)
        plain.step(drawn, upstream)
    assert_rows_match(system, plain, within=TOLERANCE[ADAGRAD] if not mixed else 2e-2)
    with pytest.raises(ValueError, match="weights"):
        system(on_its_side(system, ragged(0, tables)))
