"""Systems of composed tables: each trains as its own definition does, and keeps what the contract says of the rest."""

import itertools
from dataclasses import replace

import pytest
import torch
from scenes import (
    assert_same,
    batch_of,
    evaluate,
    on_its_side,
    optimizer,
    ragged,
    snapshot,
    spec_of,
    table,
    verification_of,
)
from torch import Tensor
from torchrec import KeyedJaggedTensor

from systems import registry
from systems.approximate.composed import ComposedSystem, Whole
from systems.approximate.hashed import Hashed, HashedPart
from systems.contract import CacheRatio, MemoryUse, OptimizerKind, Rows, Tier, Verdict

CPU = torch.device("cpu")
VARIANTS = ["hashed", "qr", "tt_rec[rank=8]"]
ALL = [name for name in registry.GROUPS["approximate"] if name.partition("[")[0] in registry.APPROXIMATE]
SIZES = [name for name in ALL if name not in VARIANTS]
KINDS = [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD]
LARGE = (
    table("users", 5000, 16, "clicked", "bought"),
    table("colours", 7, 16),
    table("words", 3001, 16),
    table("shops", 4096, 16),
)
"""Composed tables, one behind two features, and a table that stays whole."""


def built(variant: str, kind: OptimizerKind = OptimizerKind.SGD, seed: int = 3) -> ComposedSystem:
    system, spec = spec_of(variant, device=CPU, tables=LARGE, kind=kind)
    made = system(spec)
    assert isinstance(made, ComposedSystem)
    assert made.start(seed)
    return made


def step(system: object, batch: KeyedJaggedTensor, seed: int) -> Tensor:
    """Train on a batch with a gradient as small as a mean loss has: products of parameters run away from others."""
    pooled = system(on_its_side(system, batch)).values()
    gradient = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed)) / 64
    (pooled * gradient).sum().backward()
    return pooled.detach()


@pytest.mark.parametrize(
    ("variant", "kind"),
    [*itertools.product(VARIANTS, KINDS), *((variant, OptimizerKind.ROWWISE_ADAGRAD) for variant in SIZES)],
)
def test_trains_as_its_definition_does(variant: str, kind: OptimizerKind) -> None:
    system = built(variant, kind)
    definition = type(system).reference(system.spec)
    definition.start(3)
    before = snapshot(system)
    assert_same(before, snapshot(definition))
    for seed in range(3):
        batch = ragged(seed, LARGE)
        torch.testing.assert_close(step(system, batch, seed), step(definition, batch, seed), rtol=0, atol=1e-5)
    after = snapshot(system)
    assert_same(after, snapshot(definition), within=1e-5)
    assert all((after[name] - before[name]).abs().max() > 5e-4 for name in before)
    saved, wanted = system.state_dict(), definition.state_dict()  # parameters, and the state that rows have not
    assert saved.keys() == wanted.keys()
    for name, value in saved.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(variant: str, kind: OptimizerKind) -> None:
    system, resumed = built(variant, kind), built(variant, kind, seed=4)
    for seed in range(2):
        step(system, ragged(seed, LARGE), seed)
    saved = system.state_dict()
    kept = {name: value.clone() for name, value in saved.items()}
    resumed.load_state_dict(saved)
    for one in (system, resumed):
        step(one, ragged(7, LARGE), 7)
    assert_same(saved, kept)  # they are copies
    assert_same(system.state_dict(), resumed.state_dict())
    assert_same(snapshot(system), snapshot(resumed))


def test_state_of_another_variant_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"embedding_bags.users.buckets has shape \(1250, 16\)"):
        built("hashed[compression=16]").load_state_dict(built("hashed").state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*users\.first"):
        built("tt_rec").load_state_dict(built("hashed").state_dict())


@pytest.mark.parametrize("variant", VARIANTS)
def test_evaluation_leaves_parameters_alone_and_shows_the_rows_that_are_read(variant: str) -> None:
    system = built(variant)
    before = system.state_dict()
    pooled = evaluate(
        system,
        batch_of({"clicked": [[4999]], "bought": [[]], "colours": [[1]], "words": [[0, 3000]], "shops": [[9, 9]]}),
    )
    rows = {name: system.read_rows(name, torch.arange(t.num_embeddings)).weights for name, t in system.tables.items()}
    wanted = [rows["users"][4999], torch.zeros(16), rows["colours"][1], rows["words"][[0, 3000]].sum(0)]
    torch.testing.assert_close(pooled[0], torch.cat([*wanted, 2 * rows["shops"][9]]), rtol=0, atol=1e-6)
    assert_same(system.state_dict(), before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ids_outside_their_table_and_rows_to_load_are_refused(variant: str) -> None:
    system = built(variant)
    for feature, rows in (("clicked", 5000), ("words", 3001), ("shops", 4096), ("colours", 7)):
        for outside in (rows, rows + 1, 2**40, -2):
            bags = {name: [[0]] for t in LARGE for name in t.feature_names}
            with pytest.raises((IndexError, RuntimeError)):
                evaluate(system, batch_of({**bags, feature: [[outside]]}))
    with pytest.raises(IndexError):
        system.read_rows("shops", torch.tensor([4096]))
    with pytest.raises(NotImplementedError, match="start it from a seed, or load its own state_dict"):
        system.load_rows("users", 0, Rows(torch.zeros(1, 16)))


@pytest.mark.parametrize(
    ("variant", "elements"),
    [
        ("hashed[compression=64]", (79 + 7 + 47 + 64) * 16),
        ("qr[collisions=64]", (79 + 64 + 7 + 47 + 64 + 64 + 64) * 16),
        # blocks of 4 x 2 x 2 numbers, 18 x 17 x 17, 15 x 15 x 14 and 16 x 16 x 16 rows
        ("tt_rec[rank=8]", (18 + 15 + 16) * 32 + (17 + 15 + 16) * 128 + (17 + 14 + 16) * 16 + 7 * 16),
    ],
)
def test_bytes_of_known_tables(variant: str, elements: int) -> None:
    system = built(variant, OptimizerKind.ADAGRAD)
    assert system.memory() == {
        (Tier.DEVICE, MemoryUse.ROWS): 4 * elements,
        (Tier.DEVICE, MemoryUse.STATE): 4 * elements,
    }
    assert type(system).required_bytes(system.spec) == {Tier.DEVICE: 8 * elements}


@pytest.mark.parametrize("variant", ALL)
def test_rows_start_as_large_as_those_of_a_whole_table(variant: str) -> None:
    system = built(variant)
    for t in LARGE[2:]:
        rows = system.read_rows(t.name, torch.arange(t.num_embeddings)).weights
        assert abs(rows.mean()) < 0.3 * rows.std()
        assert rows.std() == pytest.approx((3 * t.num_embeddings) ** -0.5, rel=0.2)


def test_start_follows_from_the_seed_and_the_table_alone() -> None:
    same, other = built("tt_rec", seed=3), built("tt_rec", seed=4)
    assert_same(snapshot(built("tt_rec", seed=3)), snapshot(same))
    assert not torch.equal(snapshot(same)["users.weight"], snapshot(other)["users.weight"])
    system, spec = spec_of("tt_rec", device=CPU, tables=LARGE[3:])
    alone = system(spec)
    alone.start(3)
    assert_same(snapshot(alone), {"shops.weight": snapshot(same)["shops.weight"]})


@pytest.mark.parametrize("variant", VARIANTS)
def test_learning_rate_changes_parameters_are_hidden_and_adam_is_refused(variant: str) -> None:
    system = built(variant)
    before = snapshot(system)
    system.set_learning_rate(0.0)
    step(system, ragged(0, LARGE), 0)
    assert_same(snapshot(system), before)
    assert list(system.parameters()) == []
    answer = system.support(replace(system.spec, optimizer=optimizer(OptimizerKind.ADAM)))
    assert answer.verdict is Verdict.UNSUPPORTED
    assert "use sgd, rowwise_adagrad or adagrad" in answer.reason


@pytest.mark.parametrize("variant", ALL)
@pytest.mark.parametrize("dim", [16, 32, 128])
def test_tables_of_the_verification_are_composed_where_large_ones_are(variant: str, dim: int) -> None:
    chosen = registry.Variant.parse(variant)
    system = registry.load(chosen)
    _, spec = spec_of(variant, device=CPU, tables=(table("t", system.verified_rows, dim), table("small", 100, dim)))
    made = system.compositions_of(spec)
    assert not isinstance(made["t"], Whole)
    assert isinstance(made["small"], Whole)


class OtherBuckets(HashedPart):
    """Wrong: looks in the bucket next to the one that the definition says."""

    def places(self, ids: Tensor, feature: Tensor) -> list[Tensor]:
        return [(place + 1) % self._buckets[feature] for place in super().places(ids, feature)]


class WronglyHashed(Hashed):
    part = OtherBuckets


def test_verification_finds_a_system_that_is_not_what_it_is_defined_to_be() -> None:
    right, wrong = (
        verification_of(system, "hashed", budget=CacheRatio(ratio=0.1), max_rows=50_000)
        for system in (Hashed, WronglyHashed)
    )
    assert right.passed
    assert {check.name for check in wrong.checks if not check.passed} >= {"sgd: losses", "sgd: after training, rows"}
