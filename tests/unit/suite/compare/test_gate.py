import io

import pytest
from compare_scenes import OTHER_MACHINE, STEADY, compared, later, scaled
from rich.console import Console

from suite.compare.command import judge, parse_share
from suite.compare.compare import Unjudged
from suite.records.command_line import BadOption
from suite.records.record import Status
from tests.unit.suite.fabricate import BASELINE, record, rounds, verification


def test_share_is_read_in_percent_or_plain_and_refused_with_examples():
    for text, share in (("10 %", 0.1), ("0.1", 0.1), (" 2.5% ", 0.025), ("0", 0.0)):
        assert parse_share(text) == pytest.approx(share)
    for text in ("10", "-5%", "nan", "10% or so"):
        with pytest.raises(BadOption, match=r"--fail-if-slower: '.*' is no share of speed: write 10% or 0\.1"):
            parse_share(text)


def verdict(comparison):
    """Exit code of the gate at 10 %, and what it says."""
    said = io.StringIO()
    return judge(comparison, 0.10, Console(file=said, width=200)), said.getvalue()


@pytest.mark.parametrize(("factor", "code"), [(0.899, 1), (0.901, 0)])
def test_threshold_is_a_ratio_of_throughputs_of_one_less_the_share(tmp_path, factor, code):
    assert verdict(compared(tmp_path, rounds("cache", STEADY), later("cache", scaled(factor))))[0] == code


def test_noise_never_fails(tmp_path):
    uneven = [0.5 * BASELINE, BASELINE, 2 * BASELINE]
    code, said = verdict(compared(tmp_path, rounds("cache", uneven), later("cache", scaled(0.7, uneven))))
    assert code == 0
    assert "Too noisy to show a loss of 10 %, measure more rounds: cache x criteo_kaggle" in said
    assert "passed, 1 cell judged, 1 of them too noisy" in said


WRONG = {"checked": verification(passed=False, difference=0.3), "status": Status.WRONG_ANSWER}
FAILED_IN_TURNS = {"status": Status.CRASHED, "phase": "turns"}


@pytest.mark.parametrize(
    ("before", "after", "failures"),
    [
        (rounds("cache", STEADY), [record("cache", status=Status.UNSUPPORTED)], ["ok in RUN_A, unsupported in RUN_B"]),
        (rounds("cache", STEADY), later("cache", STEADY, **WRONG), ["ok in RUN_A, wrong_answer in RUN_B"]),
        (rounds("cache", STEADY), [], ["ok in RUN_A, missing from RUN_B"]),
        (
            rounds("cache", STEADY, **FAILED_IN_TURNS),
            later("cache", STEADY, **WRONG),
            ["verified in RUN_A, not in RUN_B"],
        ),
        ([record("cache", status=Status.CRASHED)], [record("cache", status=Status.TIMEOUT)], []),
        ([record("cache", status=Status.TIMEOUT)], [], []),
        ([record("cache", status=Status.UNSUPPORTED)], later("cache", STEADY), []),
        ([], later("cache", STEADY), []),
    ],
)
def test_cell_that_is_no_longer_ok_verified_or_there_fails_and_no_other_does(tmp_path, before, after, failures):
    both = compared(tmp_path, [*before, *rounds("other", STEADY)], [*after, *later("other", STEADY)])
    code, said = verdict(both)
    assert code == int(bool(failures))
    assert [line.strip() for line in said.splitlines() if line.startswith("  ")] == [
        f"cache x criteo_kaggle: {failure}" for failure in failures
    ]


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
    assert verdict(both) == (2, "\n")
    assert both.unjudged == {reason: [f"{system} x criteo_kaggle"]}


@pytest.mark.parametrize(
    ("after", "failure"),
    [
        (later("cache", STEADY[:1]), "rounds of RUN_A are missing from RUN_B: 2, 3"),
        ([one.model_copy(update={"turns": None}) for one in later("cache", STEADY)], "timed in RUN_A, not in RUN_B"),
    ],
)
def test_half_a_run_does_not_pass(tmp_path, after, failure):
    both = compared(tmp_path, [*rounds("cache", STEADY), *rounds("b", STEADY)], [*after, *later("b", STEADY)])
    code, said = verdict(both)
    assert code == 1
    assert f"cache x criteo_kaggle: {failure}" in said
