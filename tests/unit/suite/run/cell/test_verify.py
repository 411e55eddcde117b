"""Verification in this process: right systems pass, every wrong one is caught by the check that should catch it."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from suite.run.cell.setup import CellSetup
from suite.run.cell.verify import loss_tolerance, verify
from systems.contract import OptimizerKind, Support, Verdict
from systems.fbgemm.tbe_system import FullGPU
from systems.no_embeddings import NoEmbeddings
from systems.reference import ReferenceSystem
from tests.faults import wrong
from tests.faults.cells import tiny_cell
from workloads.streams.synthetic import SyntheticWorkload


@cache
def verified(system, optimizer="sgd", *, dim=4, workload=None, seed=0, beat=lambda: None):
    setup = CellSetup.of(tiny_cell(optimizer=optimizer, embedding_dim=dim))
    return verify(system, spec=setup.spec, workload=workload or setup.workload, seed=seed, beat=beat)


def failed(verification):
    return [check.name for check in verification.checks if not check.passed]


@pytest.mark.parametrize(("optimizer", "dim"), [*((kind.value, 4) for kind in OptimizerKind), ("sgd", 2048)])
def test_reference_agrees_with_itself_bitwise_for_every_optimizer_and_with_wide_rows(optimizer, dim):
    """Products of 2,048 columns are large: at the steps of narrow rows, rows became NaN, and every system wrong."""
    verification = verified(ReferenceSystem, optimizer, dim=dim)
    assert verification.passed, failed(verification)
    assert {check.max_difference for check in verification.checks} == {0.0}


@pytest.mark.parametrize("seed", [26, 35, 50])
def test_training_of_published_width_does_not_diverge(seed):
    """At a step of 1 these seeds ended in NaN; on a GPU, where sums differ, every system of a dataset was wrong."""
    published = SyntheticWorkload.create("avazu", batch_size=16_384, seed=0)
    verification = verified(ReferenceSystem, dim=128, workload=published, seed=seed)
    assert verification.passed, failed(verification)


def test_fbgemm_with_all_rows_on_the_device_is_bitwise_right_with_sgd_and_close_with_adagrad():
    verification = verified(FullGPU)
    assert verification.passed, failed(verification)
    one_hot = [c for c in verification.checks if c.name.startswith("sgd: ") and "bags" not in c.name]
    assert len(one_hot) >= 4
    assert {(check.max_difference, check.tolerance) for check in one_hot if "output" not in check.name} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("device", "exact", "allowed", "of_loss"),
    [
        ("cpu", True, 0.0, 0.0),
        ("cpu", True, 5e-4, 5e-5),
        ("cuda", True, 2e-6, 1e-6),
        ("cuda", True, 5e-4, 5e-5),
        ("cuda", False, 2e-6, 2e-6),
    ],
)
def test_losses_may_differ_by_less_than_rows_but_on_a_device_by_rounding(device, exact, allowed, of_loss):
    system = SimpleNamespace(spec=SimpleNamespace(device=torch.device(device)), exact=exact)
    assert loss_tolerance(system, allowed) == pytest.approx(of_loss)


def test_sgd_cell_is_verified_with_rowwise_adagrad_too_and_shows_life_at_every_check():
    beats = []
    verification = verified(ReferenceSystem, beat=lambda: beats.append(1))
    kinds = {check.name.partition(":")[0] for check in verification.checks}
    assert kinds == {"sgd", "rowwise_adagrad"}
    assert len(beats) == len(verification.checks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "check"),
    [
        (wrong.SlightlyWrongUpdate, "sgd: after training, rows"),
        (wrong.SlightlyWrongUpdate, "rowwise_adagrad: after training, rows"),
        (wrong.WrongForDuplicates, "sgd: after training, rows"),
        (wrong.WrongForDuplicates, "rowwise_adagrad: after training, optimizer state"),
        (wrong.EvaluationChangesRows, "sgd: evaluation leaves rows untouched"),
        (wrong.SavesNoState, "rowwise_adagrad: save, load and go on, optimizer state"),
        (wrong.DropsState, "rowwise_adagrad: save, load and go on"),
        (wrong.StaleAfterEviction, "sgd: after training, rows"),
        (wrong.StaleAfterEviction, "rowwise_adagrad: after training, optimizer state"),
        (wrong.EmptyBagIsNotZero, "sgd: empty bags and duplicates, output"),
        (wrong.MixesUpTables, "sgd: losses"),
        (wrong.ReadsTheOldRows, "sgd: after training, rows"),
        (NoEmbeddings, "sgd: after training, rows"),
        (wrong.WrongForDuplicates, "adagrad: after training, rows"),
        (wrong.SavesNoState, "adagrad: save, load and go on, optimizer state"),
        (wrong.StaleAfterEviction, "adagrad: after training, rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_wrong_system_is_caught_by(system, check):
    assert check in failed(verified(system, "adagrad" if check.startswith("adagrad") else "sgd"))


def test_state_dict_that_cannot_be_loaded_is_a_failed_check_and_says_which_keys_it_lacks():
    checks = verified(wrong.DropsState).checks
    (check,) = [check for check in checks if not check.passed]
    assert "its own state_dict cannot be loaded" in check.detail
    assert "Missing key" in check.detail
    assert "\n" not in check.detail


def test_system_that_takes_no_update_in_evaluation_mode_is_right():
    class FrozenInEvaluation(ReferenceSystem):
        def forward(self, features):
            with torch.set_grad_enabled(self.training):
                return super().forward(features)

    assert verified(FrozenInEvaluation).passed


def test_system_that_supports_nothing_of_the_probe_is_not_verified():
    class Fussy(ReferenceSystem):
        @classmethod
        def support(cls, spec):
            return Support(Verdict.UNSUPPORTED, "no")

    verification = verified(Fussy)
    assert verification.checks == ()
    assert not verification.passed


def test_small_dataset_is_verified_on_smaller_batches_and_never_past_its_end():
    class Short(SyntheticWorkload):
        seen = []

        def epoch_rows(self):
            return 100

        def shrunk(self, **sizes):
            small = super().shrunk(**sizes)
            batch = small.batch
            small.batch = lambda index, *rest: self.seen.append((index + 1) * small.batch_size) or batch(index, *rest)
            return small

    workload = Short.create("avazu", batch_size=32, seed=0, max_rows=2000)
    assert verified(ReferenceSystem, workload=workload).passed
    assert 50 < max(Short.seen) <= 100
