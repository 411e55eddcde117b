"""Every system trains as plain torch does: what it pools, the rows it leaves, and their optimizer state."""

from dataclasses import replace
from importlib import metadata

import pytest
import torch
from packaging.version import Version
from scenes import (
    EVERY_VARIANT,
    KINDS,
    TABLES,
    TOLERANCE,
    VARIANTS,
    assert_rows_match,
    assert_same,
    batch_of,
    build,
    on_its_side,
    optimizer,
    ragged,
    repeatable,
    runnable,
    snapshot,
    started,
    table,
    train,
    train_beside,
)
from torch import nn
from torchrec import KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from systems.contract import CacheRatio, OptimizerKind, Rows
from tests.contract.plain_training import PlainTraining

by_variant = pytest.mark.parametrize("variant", VARIANTS)
by_kind = pytest.mark.parametrize("kind", KINDS)


def side_by_side(
    variant: str, device: torch.device, kind: OptimizerKind, batches: list[KeyedJaggedTensor], ratio: float = 0.4
) -> None:
    system = started(variant, device, kind, budget=CacheRatio(ratio=ratio))
    plain = PlainTraining(TABLES, optimizer(kind))
    train_beside(system, plain, batches, within=TOLERANCE[kind])
    system.flush()
    assert_rows_match(system, plain, within=TOLERANCE[kind])


@pytest.mark.parametrize("variant", EVERY_VARIANT)
@by_kind
@pytest.mark.parametrize("ratio", [0.05, 0.6], ids=["cache smaller than a batch", "cache larger than a batch"])
def test_trains_as_plain_torch(variant: str, kind: OptimizerKind, ratio: float, device: torch.device) -> None:
    longest = 4 if ratio < 0.5 else 1
    side_by_side(variant, device, kind, [ragged(seed, longest=longest) for seed in range(8)], ratio)


@by_variant
@by_kind
def test_odd_batches_train_as_plain_torch(variant: str, kind: OptimizerKind, device: torch.device) -> None:
    """One row many times, the first and last of every table, no id at all, int32 ids."""
    repeated = batch_of({name: [[0, 0, 0], [], [0, 0]] for t in TABLES for name in t.feature_names})
    ends = batch_of({name: [[0], [t.num_embeddings - 1]] for t in TABLES for name in t.feature_names})
    empty = batch_of({name: [[], []] for t in TABLES for name in t.feature_names})
    wide = ragged(3)
    narrow = KeyedJaggedTensor(wide.keys(), wide.values().int(), lengths=wide.lengths().int())
    side_by_side(variant, device, kind, [repeated, ends, repeated, empty, narrow, ends])


@by_variant
@by_kind
def test_learning_rate_changed_between_steps_holds_from_the_next_step_on(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system, plain = started(variant, device, kind), PlainTraining(TABLES, optimizer(kind))
    for seed, factor in enumerate([1.0, 0.1, 0.0, 0.7]):
        lr = factor * optimizer(kind).lr
        system.set_learning_rate(lr)
        plain.optimizer = replace(plain.optimizer, lr=lr)
        train_beside(system, plain, [ragged(seed)], within=TOLERANCE[kind])
        assert_rows_match(system, plain, within=TOLERANCE[kind])


@by_variant
@by_kind
def test_learning_rate_set_before_the_first_step_equals_one_built_with(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system, spec = runnable(variant, device=device, kind=kind)
    optimizer_with = replace(spec.optimizer, lr=0.0123)  # no fp32 number: both ways must round it alike
    changed, built = system(spec), system(replace(spec, optimizer=optimizer_with))
    changed.set_learning_rate(0.0123)
    for one in (changed, built):
        PlainTraining(TABLES, optimizer(kind)).start(one)
        for seed in range(2):
            train(one, ragged(seed), seed)
    assert_same(snapshot(changed), snapshot(built), within=repeatable(device))


@by_variant
def test_output_is_in_table_order_whatever_the_order_of_keys_and_features_of_no_table_are_ignored(
    variant: str, device: torch.device
) -> None:
    system = started(variant, device, OptimizerKind.SGD)
    batch = ragged(6, shuffle_keys=False)
    backwards = batch.permute(list(reversed(range(len(batch.keys())))))
    wider = KeyedJaggedTensor(
        ["stranger", *batch.keys()],
        torch.cat([torch.tensor([10**6] * 8), batch.values()]),
        lengths=torch.cat([torch.ones(8, dtype=torch.int64), batch.lengths()]),
    )
    expected = PlainTraining(TABLES, system.spec.optimizer).pooled(batch).float()
    for ordered in (batch, backwards, wider, batch):
        with torch.no_grad():
            pooled = system(on_its_side(system, ordered))
        assert pooled.keys() == [name for t in TABLES for name in t.feature_names]
        assert pooled.length_per_key() == [t.embedding_dim for t in TABLES for _ in t.feature_names]
        assert (pooled.values().dtype, pooled.values().device.type) == (torch.float32, device.type)
        torch.testing.assert_close(pooled.values().cpu(), expected, rtol=1e-5, atol=1e-5)


@by_variant
def test_missing_features_and_weights_that_were_not_announced_are_refused(variant: str, device: torch.device) -> None:
    system = build(variant, device=device)
    plain = batch_of({name: [[0]] for t in TABLES for name in t.feature_names})
    with pytest.raises(ValueError, match="bought"):
        system(on_its_side(system, plain.permute([at for at, name in enumerate(plain.keys()) if name != "bought"])))
    weights = torch.full((plain.values().numel(),), 2.0)
    weighted = KeyedJaggedTensor(plain.keys(), plain.values(), weights, lengths=plain.lengths())
    assert not system.is_weighted()
    with pytest.raises(ValueError, match="weights"):
        system(on_its_side(system, weighted))


@by_variant
def test_ids_outside_their_table_raise_and_batches_after_them_train_as_if_nothing_had_happened(
    variant: str, device: torch.device
) -> None:
    kind = OptimizerKind.SGD
    system, plain = started(variant, device, kind), PlainTraining(TABLES, optimizer(kind))
    if device.type == "cuda" and not system.ids_on_host:
        pytest.skip("on CUDA a bad id is a device assertion, after which the process cannot use the device")
    bags = {name: [[t.num_embeddings - 1]] for t in TABLES for name in t.feature_names}
    for t in TABLES:
        for feature in t.feature_names:
            for outside in (t.num_embeddings, -1):
                with pytest.raises((IndexError, RuntimeError)):
                    system(batch_of({**bags, feature: [[outside]]}))
    train_beside(system, plain, map(ragged, range(3)), within=TOLERANCE[kind])
    assert_rows_match(system, plain, within=TOLERANCE[kind])


@by_variant
def test_stands_where_torchrecs_dlrm_wants_its_collection(variant: str, device: torch.device) -> None:
    torch.manual_seed(0)
    system = started(variant, device, OptimizerKind.SGD)
    model = DLRM(
        embedding_bag_collection=system,
        dense_in_features=3,
        dense_arch_layer_sizes=[8, 16],
        over_arch_layer_sizes=[8, 1],
        dense_device=device,
    )
    labels = torch.tensor([0.0, 1.0] * 4, device=device)
    dense, batch = torch.randn(8, 3, device=device), ragged(0)
    losses = []
    for _ in range(12):  # the rows alone are trained
        logits = model(dense_features=dense, sparse_features=on_its_side(system, batch)).squeeze(-1)
        losses.append(nn.functional.binary_cross_entropy_with_logits(logits, labels))
        losses[-1].backward()
    assert losses[-1] < 0.9 * losses[0]
    assert {f"sparse_arch.embedding_bag_collection.embedding_bags.{t.name}.weight" for t in TABLES} <= set(
        model.state_dict()
    )


@by_variant
@pytest.mark.parametrize("lr", [1.0, 0.007])
def test_sgd_on_a_cpu_equals_the_reference_bitwise_whatever_the_learning_rate(variant: str, lr: float) -> None:
    """Sum pooling and one id per bag, as in the comparison: no system may differ from the yardstick by one bit."""
    if lr != 1.0 and Version(metadata.version("torchrec")) < Version("1.8"):  # and so is fbgemm
        pytest.skip("fbgemm before 1.8 rounds learning rate x gradient before it subtracts")
    if lr != 1.0 and variant == "colossalai_cache":
        pytest.skip("torch's SGD may round learning rate x gradient before it subtracts")
    tables = (table("left", 37, 16), table("right", 11, 16))
    systems = []
    for name in (variant, "reference"):
        found, spec = runnable(name, device=torch.device("cpu"), tables=tables)
        systems.append(found(replace(spec, optimizer=replace(spec.optimizer, lr=lr))))
        for number, one in enumerate(tables):
            rows = torch.randn(one.num_embeddings, 16, generator=torch.Generator().manual_seed(number))
            systems[-1].load_rows(one.name, 0, Rows(rows))
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        ids = {t.name: torch.randint(0, t.num_embeddings, (64, 1), generator=generator).tolist() for t in tables}
        ours, theirs = (train(system, batch_of(ids), step) for system in systems)
        assert torch.equal(ours, theirs)
    assert_same(*map(snapshot, systems))
