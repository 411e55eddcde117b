import pytest
from compare_scenes import OTHER_MACHINE, STEADY, compared, later, scaled

from suite.compare.command import judge, parse_share
from suite.compare.compare import Unjudged
from suite.records.command_line import BadOption
from suite.records.record import Status
from tests.unit.suite.fabricate import BASELINE, record, rounds, verification


def verdict(tmp_path, before, after, threshold=0.10):
    return judge(compared(tmp_path, before, after), threshold)


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("10 %", 0.1), ("0.1", 0.1), (" 2.5% ", 0.025), ("0", 0.0)])
def test_share_is_read_in_percent_or_plain(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["10", "-5%", "nan", "10% or so"])
def test_what_is_no_share_is_refused_with_examples(text):
    with pytest.raises(BadOption, match=r"--fail-if-slower: '.*' is no share of speed: write 10% or 0\.1"):
        parse_share(text)


@pytest.mark.parametrize(("factor", "code"), [(0.899, 1), (0.901, 0)])
def test_threshold_is_a_ratio_of_throughputs_of_one_less_the_share(tmp_path, factor, code):
    assert verdict(tmp_path, rounds("cache", STEADY), later("cache", scaled(factor))).exit_code == code


def test_noise_never_fails(tmp_path):
    uneven = [0.5 * BASELINE, BASELINE, 2 * BASELINE]
    found = verdict(tmp_path, rounds("cache", uneven), later("cache", scaled(0.7, uneven)))
    assert (found.exit_code, found.judged) == (0, 1)
    assert found.noisy == ("cache x criteo_kaggle",)


WRONG = {"checked": verification(passed=False, difference=0.3), "status": Status.WRONG_ANSWER}


@pytest.mark.parametrize(
    ("before", "after", "failure"),
    [
        (rounds("cache", STEADY), [record("cache", status=Status.CRASHED)], "ok in RUN_A, crashed in RUN_B"),
        (rounds("cache", STEADY), [record("cache", status=Status.UNSUPPORTED)], "ok in RUN_A, unsupported in RUN_B"),
        (rounds("cache", STEADY), later("cache", STEADY, **WRONG), "ok in RUN_A, wrong_answer in RUN_B"),
        (rounds("cache", STEADY), [], "ok in RUN_A, missing from RUN_B"),
        (
            rounds("cache", STEADY, status=Status.CRASHED, phase="turns"),
            later("cache", STEADY, **WRONG),
            "verified in RUN_A, not in RUN_B",
        ),
    ],
)
def test_cell_that_is_no_longer_ok_verified_or_there_fails(tmp_path, before, after, failure):
    found = verdict(tmp_path, [*before, *rounds("other", STEADY)], [*after, *later("other", STEADY)])
    assert found.exit_code == 1
    assert found.failures == (f"cache x criteo_kaggle: {failure}",)


def test_cell_that_never_was_ok_fails_nothing(tmp_path):
    crashed = record("bad", status=Status.CRASHED)
    unsupported = record("odd", status=Status.UNSUPPORTED)
    before = [*rounds("cache", STEADY), crashed, unsupported, record("gone", status=Status.TIMEOUT)]
    after = [*later("cache", STEADY), crashed, *later("odd", STEADY), *later("new", STEADY)]
    assert verdict(tmp_path, before, after).exit_code == 0


@pytest.mark.parametrize(
    ("system", "setting", "after", "reason"),
    [
        ("full_gpu", None, {"baseline": BASELINE / 2}, Unjudged.IS_THE_BASELINE),
        ("cache", {"builds": 1}, {}, Unjudged.NO_INTERVAL),
        ("cache", None, {"where": OTHER_MACHINE}, Unjudged.ANOTHER_MACHINE),
        ("cache", None, {"baseline": None}, Unjudged.NO_BASELINE),
    ],
)
def test_speed_that_decides_nothing_is_listed_with_a_remedy(tmp_path, system, setting, after, reason):
    before, now = [BASELINE], [0.5 * BASELINE]
    both = compared(tmp_path, rounds(system, before, setting=setting), later(system, now, setting=setting, **after))
    found = judge(both, 0.10)
    assert (found.exit_code, found.judged, found.failures) == (2, 0, ())
    assert both.unjudged == {reason: [f"{system} x criteo_kaggle"]}
