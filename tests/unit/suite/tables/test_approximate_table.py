"""Approximate systems: apart from exact ones, with intervals over seeds and bytes by tier."""

import pytest

from suite.records.groups import group_records
from suite.tables.comparison import APPROXIMATE, approximate_tables, approximations, comparison
from suite.tables.verdict import verdict
from tests.unit.suite import fabricate

MB = 1_000_000


def rounds(system, aurocs, *, exact=False, **measured):
    """A system's rounds with these scores."""
    return [fabricate.record(system, round=n, auroc=auroc, exact=exact, **measured) for n, auroc in enumerate(aurocs)]


EXACT = rounds("full_gpu", [0.78, 0.80, 0.79], anatomy={"device/rows": 90 * MB, "device/state": 10 * MB}, exact=True)
SMALL = rounds("hashed", [0.76, 0.78, 0.77], anatomy={"device/rows": 25 * MB})
TINY = rounds("hashed[compression=64]", [0.75, 0.77, 0.76], anatomy={"device/rows": 4 * MB // 10})
CACHED = rounds(
    "freq_cache[slow_rows=int8]",
    [0.7801, 0.7999, 0.79],
    anatomy={"device/rows": 5 * MB, "host/rows": 30 * MB, "host/state": 10 * MB},
)


def only(*runs):
    (group,) = group_records([record for of_system in runs for record in of_system])
    return group


def test_scores_are_paired_by_seed_and_bytes_are_those_of_the_slowest_tier():
    exact, cached, small = approximations(only(SMALL, CACHED, EXACT))
    assert [exact[name] for name in ("system", "exact", "share", "below")] == ["full_gpu", True, 1.0, None]
    assert [cached[name] for name in ("table_bytes", "device_bytes", "share")] == [40 * MB, 5 * MB, 0.4]
    assert cached["below"].value == pytest.approx(0.0, abs=1e-9)
    assert cached["below"].low < 0 < cached["below"].high < 0.0004
    assert [small[name] for name in ("table_bytes", "host_bytes", "share")] == [25 * MB, None, 0.25]
    # every seed loses the same, though seeds differ: the interval of the loss is a point, that of the score is wide
    assert (small["below"].value, small["below"].low, small["below"].high) == pytest.approx((0.02, 0.02, 0.02))
    assert small["auroc"].high - small["auroc"].low == pytest.approx(2 * 4.303 * 0.01 / 3**0.5, rel=1e-3)


def test_what_fewer_bytes_cost_is_said_in_a_sentence():
    (block,) = approximate_tables(only(EXACT, SMALL, CACHED))
    assert block.summary == (
        "freq_cache[slow_rows=int8] takes 40 % of the exact tables' bytes, and no loss of AUROC was seen (at most "
        "0.0002); the smallest, hashed, takes 25.0 % and loses 0.0200 [0.0200, 0.0200]."
    )
    (some,) = approximate_tables(only(EXACT, SMALL, TINY, CACHED[:1]))
    assert some.summary == (
        "Every approximate system that can be judged loses AUROC; the smallest, hashed[compression=64], takes 0.4 % "
        "and loses 0.0300 [0.0300, 0.0300]."
    )
    (single,) = approximate_tables(only(EXACT[:1], SMALL[:1]))
    assert single.summary.startswith("Nothing can be said of what fewer bytes cost")


def test_approximate_systems_stand_apart_from_exact_ones():
    plain, mixed = only(EXACT), only(EXACT, SMALL, CACHED)
    assert approximate_tables(plain) == []
    main, apart = comparison([mixed]).tables
    assert apart.heading == APPROXIMATE
    assert [line["system"] for line in main.lines] == ["full_gpu"]
    assert [line["system"] for line in apart.lines] == ["full_gpu", "freq_cache[slow_rows=int8]", "hashed"]
    assert verdict(mixed) == ""
    assert verdict(plain) == "Nothing to compare: no system beside full_gpu can be judged."


def test_wrong_answers_show_no_number():
    wrong = [run.model_copy(update={"status": "wrong_answer", "measurement": None}) for run in SMALL[:1]]
    assert all(one["system"] != "hashed" or one["auroc"] is None for one in approximations(only(EXACT, CACHED, wrong)))
