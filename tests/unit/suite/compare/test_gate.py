from __future__ import annotations

import pytest
from compare_scenes import OTHER_MACHINE, STEADY, compared, later, scaled

from suite.compare.gate import judge, parse_share
from suite.compare.runs import NoComparison
from suite.compare.speeds import Unjudged
from suite.records.status import Status
from tests.unit.suite.fabricate import record, rounds, verification

NOISY = [700.0, 1300.0, 1000.0]


def verdict(tmp_path, before, after, threshold=0.10, **options):
    return judge(compared(tmp_path, before, after, **options), threshold)


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("10 %", 0.1), ("0.1", 0.1), (" 2.5% ", 0.025), ("0", 0.0), ("0%", 0.0)]
)
def test_share_is_read_in_percent_or_plain(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["10", "1", "100%", "-5%", "nan", "inf", "", "%", "ten", "10%%", "10% or so"])
def test_what_is_no_share_is_refused_with_examples(text):
    with pytest.raises(NoComparison, match=r"--fail-if-slower: '.*' is no share of speed: write 10% or 0\.1"):
        parse_share(text)


def test_loss_beyond_the_threshold_and_noise_fails(tmp_path):
    found = verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(0.85)))
    assert found.exit_code == 1
    assert found.failures == ("cache x criteo_kaggle: slower by 15.0 %, more than 10 %",)


def test_loss_within_the_threshold_passes(tmp_path):
    found = verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(0.92)))
    assert (found.exit_code, found.failures, found.judged) == (0, (), 1)


@pytest.mark.parametrize(("factor", "code"), [(0.901, 0), (0.899, 1)])
def test_threshold_is_a_ratio_of_throughputs_of_one_less_the_share(tmp_path, factor, code):
    assert verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(factor))).exit_code == code


def test_noise_never_fails(tmp_path):
    found = verdict(tmp_path, rounds("cache", NOISY), later("cache", scaled(0.7, NOISY)))
    assert (found.exit_code, found.judged) == (0, 1)
    assert found.noisy == ("cache x criteo_kaggle",)


def test_any_loss_beyond_noise_fails_at_threshold_zero(tmp_path):
    steady = [1000.0, 1000.1, 999.9]
    before, after = rounds("cache", steady), later("cache", scaled(0.99, steady))
    assert verdict(tmp_path / "strict", before, after, 0.0).exit_code == 1
    assert verdict(tmp_path / "lenient", before, after, 0.02).exit_code == 0


def test_faster_passes(tmp_path):
    assert verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(2.0))).exit_code == 0


@pytest.mark.parametrize("status", [Status.CRASHED, Status.UNSUPPORTED, Status.TIMEOUT, Status.WRONG_ANSWER])
def test_cell_that_is_no_longer_ok_fails(tmp_path, status):
    before = [*rounds("cache", STEADY), *rounds("other", STEADY)]
    found = verdict(tmp_path, before, [record("cache", status=status), *later("other", STEADY)])
    assert found.exit_code == 1
    assert found.failures == (f"cache x criteo_kaggle: ok in RUN_A, {status} in RUN_B",)


def test_one_round_that_is_no_longer_ok_fails_the_cell(tmp_path):
    after = [*later("cache", STEADY[:2]), record("cache", round=2, status=Status.CRASHED)]
    assert verdict(tmp_path, rounds("cache", STEADY), after).exit_code == 1


def test_cell_that_is_no_longer_verified_fails(tmp_path):
    wrong = verification(passed=False, difference=0.3)
    found = verdict(tmp_path, rounds("cache", STEADY), later("cache", STEADY, checked=wrong))
    assert found.failures == ("cache x criteo_kaggle: verified in RUN_A, not in RUN_B",)


def test_cell_that_was_ok_and_is_missing_fails(tmp_path):
    found = verdict(tmp_path, [*rounds("cache", STEADY), *rounds("gone", STEADY)], later("cache", STEADY))
    assert found.failures == ("gone x criteo_kaggle: ok in RUN_A, missing from RUN_B",)


def test_cell_that_never_was_ok_fails_nothing(tmp_path):
    crashed = record("bad", status=Status.CRASHED)
    unsupported = record("odd", status=Status.UNSUPPORTED)
    before = [*rounds("cache", STEADY), crashed, unsupported, record("gone", status=Status.TIMEOUT)]
    after = [*later("cache", STEADY), crashed, *later("odd", STEADY), *later("new", STEADY)]
    assert verdict(tmp_path, before, after).exit_code == 0


def test_cells_of_one_round_are_listed_and_not_judged(tmp_path):
    before = [*rounds("cache", STEADY), *rounds("once", [1000.0])]
    found = verdict(tmp_path, before, [*later("cache", STEADY), *later("once", [10.0])])
    assert (found.exit_code, found.judged) == (0, 1)
    assert found.unjudged == {Unjudged.ONE_ROUND: ["once x criteo_kaggle"]}


def test_gate_that_judged_nothing_does_not_pass(tmp_path):
    once = verdict(tmp_path / "once", rounds("cache", [1000.0]), later("cache", [1000.0]))
    assert (once.exit_code, once.judged) == (2, 0)
    assert once.remedies == ["one round: no interval: run both with --rounds 3 or more"]
    machines = verdict(tmp_path / "machines", rounds("cache", STEADY), later("cache", STEADY, where=OTHER_MACHINE))
    assert machines.exit_code == 2
    assert "--normalize-by full_gpu" in machines.remedies[0]


def test_slower_machine_fails_nothing_by_itself(tmp_path):
    found = verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(0.5), where=OTHER_MACHINE))
    assert (found.exit_code, found.failures) == (2, ())


def test_failure_counts_even_where_no_speed_could_be_judged(tmp_path):
    assert verdict(tmp_path, rounds("cache", STEADY), [record("cache", status=Status.OOM_HOST)]).exit_code == 1


def test_normalised_speeds_of_two_machines_are_judged(tmp_path):
    before = [*rounds("full_gpu", STEADY), *rounds("cache", STEADY)]
    after = [*later("full_gpu", scaled(2.0), where=OTHER_MACHINE), *later("cache", STEADY, where=OTHER_MACHINE)]
    found = verdict(tmp_path, before, after, normalize_by="full_gpu")
    assert (found.exit_code, found.judged) == (1, 1)
    assert found.failures == ("cache x criteo_kaggle: slower by 50.0 %, more than 10 %",)
