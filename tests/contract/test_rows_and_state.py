"""Rows and optimizer state: loaded, read, trained on, saved and loaded again, the same for every system."""

import pytest
import torch
from scenes import (
    EVERY_VARIANT,
    KINDS,
    TABLES,
    VARIANTS,
    assert_same,
    build,
    evaluate,
    on_its_side,
    optimizer,
    ragged,
    repeatable,
    snapshot,
    started,
    train,
    trained,
)

from systems.contract import CacheRatio, OptimizerKind, Rows

ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD
by_variant = pytest.mark.parametrize("variant", VARIANTS)


@by_variant
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.02, 0.5], ids=["batches overflow a cache", "batches fit a cache"])
def test_training_with_evaluation_flushes_and_saving_in_between_equals_training_alone(
    variant: str, kind: OptimizerKind, ratio: float, device: torch.device
) -> None:
    plain, evaluated, flushed = (started(variant, device, kind, budget=CacheRatio(ratio=ratio)) for _ in range(3))
    evaluate(evaluated, ragged(99))
    flushed.flush()  # before any batch
    for seed in range(4):
        for system in (plain, evaluated, flushed):
            train(system, ragged(seed), seed)
        assert torch.equal(evaluate(evaluated, ragged(100 + seed)), evaluate(evaluated, ragged(100 + seed)))
        flushed.flush()
        flushed.state_dict()
    for interrupted in (evaluated, flushed):
        assert_same(snapshot(interrupted), snapshot(plain), within=repeatable(device))
        for name in plain.tables:  # by which Adam corrects its moments
            assert interrupted.optimizer_steps(name) == plain.optimizer_steps(name)


@by_variant
@pytest.mark.parametrize("kind", KINDS)
def test_rows_loaded_into_part_of_a_table_are_read_back(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system = trained(variant, device, kind)
    expected = snapshot(system)
    values = torch.arange(5 * 16, dtype=torch.float32).view(5, 16)
    shapes = optimizer(kind).state_shapes(16)
    state = {name: torch.rand((5,) if width == 1 else (5, width)) for name, width in shapes.items()}
    system.load_rows("users", 10, Rows(values, state))
    expected["users.weight"][10:15] = values
    for name, value in state.items():
        expected[f"users.{name}"][10:15] = value
    assert_same(snapshot(system), expected)
    system.load_rows("users", 12, Rows(values[:2]))  # state that it does not name becomes zero
    expected["users.weight"][12:14] = values[:2]
    for name in state:
        expected[f"users.{name}"][12:14] = 0
    assert_same(snapshot(system), expected)


@by_variant
def test_loaded_rows_are_looked_up_at_once_even_if_old_ones_were_cached(variant: str, device: torch.device) -> None:
    system = trained(variant, device, OptimizerKind.SGD, budget=CacheRatio(ratio=1.0))
    for t in TABLES:
        system.load_rows(t.name, 0, Rows(torch.full((t.num_embeddings, t.embedding_dim), 2.0)))
    batch = ragged(9)
    lengths = {name: part.lengths() for name, part in batch.to_dict().items()}
    with torch.no_grad():
        pooled = system(on_its_side(system, batch)).to_dict()
    for t in TABLES:
        for name in t.feature_names:
            assert torch.equal(pooled[name].cpu(), 2.0 * lengths[name].float()[:, None].expand(-1, t.embedding_dim))


@by_variant
def test_rows_are_read_in_the_order_asked_and_belong_to_the_caller(variant: str, device: torch.device) -> None:
    system = trained(variant, device)
    before = snapshot(system)
    ids = torch.tensor([28, 0, 28, 5])
    rows = system.read_rows("words", ids)
    assert torch.equal(rows.weights, before["words.weight"][ids])
    assert torch.equal(rows.state["sum"], before["words.sum"][ids])
    rows.weights.zero_()
    rows.state["sum"].fill_(9.0)
    assert_same(snapshot(system), before)
    none = system.read_rows("words", ids[:0])
    assert (none.weights.shape, none.state["sum"].shape) == ((0, 16), (0,))


@by_variant
def test_rows_outside_a_table_or_of_another_shape_are_refused_and_change_nothing(
    variant: str, device: torch.device
) -> None:
    system = started(variant, device)
    before = snapshot(system)
    for name, t in system.tables.items():
        for past, count in ((1, 2), (0, 1), (0, 2)):
            for start in (t.num_embeddings - past, -count):
                with pytest.raises(IndexError):
                    system.load_rows(name, start, Rows(torch.full((count, t.embedding_dim), 5.0)))
        for row in (-1, t.num_embeddings):
            with pytest.raises(IndexError):
                system.read_rows(name, torch.tensor([row]))
    for rows in (
        Rows(torch.ones(2, 1)),
        Rows(torch.ones(2, 4)),
        Rows(torch.ones(2, 16), {"sum": torch.ones(1)}),
        Rows(torch.ones(2, 16), {"sum": torch.ones(2, 16)}),
        Rows(torch.ones(2, 16), {"momentum": torch.ones(2, 16)}),
    ):
        with pytest.raises(ValueError, match="words"):
            system.load_rows("words", 3, rows)
    assert_same(snapshot(system), before)


@pytest.mark.parametrize("variant", EVERY_VARIANT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.1, 1.0], ids=["smaller cache", "larger cache"])
def test_saved_loaded_and_gone_on_equals_never_having_stopped(
    variant: str, kind: OptimizerKind, ratio: float, device: torch.device
) -> None:
    steady = trained(variant, device, kind)
    resumed = build(variant, device=device, kind=kind, budget=CacheRatio(ratio=ratio))
    train(resumed, ragged(999), 999)  # what it knew before must not shine through
    resumed.load_state_dict(steady.state_dict())
    # hot_split adds a bag's hot rows apart from its others, and which are hot follows from the ratio
    within = 1e-5 if variant == "hot_split" else repeatable(device)
    for seed in range(10, 13):
        ours, theirs = (train(system, ragged(seed), seed) for system in (resumed, steady))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=within)
    assert_same(snapshot(resumed), snapshot(steady), within=within)


@by_variant
def test_saved_state_is_a_copy_that_another_system_can_load(variant: str, device: torch.device) -> None:
    system, donor = trained(variant, device), trained("reference", device)
    saved = system.state_dict()
    kept = {name: value.clone() for name, value in saved.items()}
    train(system, ragged(60), 60)
    assert_same(saved, kept)
    weights = {name: value for name, value in donor.state_dict().items() if name.endswith(".weight")}
    expected = {**system.state_dict(), **weights}  # state stays where weights alone are loaded
    missing = system.load_state_dict(weights, strict=False).missing_keys
    assert missing == [name for name in expected if name not in weights] != []
    assert_same(system.state_dict(), expected)
    system.load_state_dict(donor.state_dict())
    assert_same(snapshot(system), snapshot(donor))


@by_variant
def test_state_that_does_not_fit_is_refused_by_key(variant: str, device: torch.device) -> None:
    system = trained(variant, device)
    saved = system.state_dict()
    before = snapshot(system)
    for entry, shape in (("weight", (28, 16)), ("weight", (29, 4)), ("sum", (1,)), ("sum", (28,)), ("sum", (29, 16))):
        with pytest.raises(RuntimeError, match=f"words.{entry} has shape"):
            system.load_state_dict({**saved, f"embedding_bags.words.{entry}": torch.ones(shape)})
    for entry in ("weight", "sum"):
        key = f"embedding_bags.words.{entry}"
        with pytest.raises(RuntimeError, match=key):
            system.load_state_dict({name: value for name, value in saved.items() if name != key})
    with pytest.raises(RuntimeError, match=r"embedding_bags\.strangers\.weight"):
        system.load_state_dict({**saved, "embedding_bags.strangers.weight": torch.zeros(2, 4)})
    assert_same(snapshot(system), before)
    with pytest.raises(RuntimeError, match=r"Unexpected.*words\.sum"):
        build(variant, device=device, kind=OptimizerKind.SGD).load_state_dict(saved)


@by_variant
def test_rows_are_hidden_from_dense_optimizers_and_the_tables_are_those_given(
    variant: str, device: torch.device
) -> None:
    system = build(variant, device=device)
    assert not [*system.parameters(), *system.buffers(), *system.children()]
    assert system.embedding_bag_configs() == list(TABLES)
