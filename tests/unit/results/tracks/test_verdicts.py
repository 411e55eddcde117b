"""The drift board's sentences follow from its numbers: made-up streams whose verdicts are known."""

from typing import Any

import drift_board
import pytest


def stream(**changed: list[float]) -> dict[str, Any]:
    """Nine stretches, the first three of which fill the cache; every policy misses 200 in each, the optimum 100."""
    names = ("static", "static, first tenth", "fae", "lfu", "fbgemm_lfu", "lru")
    return {"misses": {**{name: [200.0] * 9 for name in names}, **changed, "belady": [100.0] * 6}}


def test_who_misses_least_is_sought_among_those_that_learn() -> None:
    made = stream(static=[120.0] * 9, fbgemm_lfu=[150.0] * 9, lfu=[180.0] * 9)
    said = drift_board.verdict(made, 4)
    assert said.startswith("`fbgemm_lfu` misses least of what learns by itself, 1.50 times the optimum, and 17 % less")
    assert "static frequencies miss 20 % less than it, those of the first tenth 33 % more than it" in said


def test_misses_while_the_cache_fills_are_in_no_sum() -> None:
    made = stream(lru=[900.0, 900, 900, *[150] * 6])
    assert drift_board.levels(made)["lru"] == 150
    assert drift_board.learners(made)[0] == "lru"


def test_a_policy_that_loses_against_the_optimum_grows_old() -> None:
    made = stream(lfu=[200.0, 200, 200, 200, 200, 210, 210, 240, 240])
    assert drift_board.ageing(made, "lfu") == pytest.approx(0.2)
    assert "against the optimum `lfu` by 20 % lose while it runs" in drift_board.verdict(made, 4)
    made["misses"]["belady"] = [100.0, 100, 105, 105, 120, 120]  # all streams grow harder: nobody grows old
    assert drift_board.ageing(made, "lfu") == pytest.approx(0)


def test_recovery_is_coming_within_five_percent_of_the_best_that_learns() -> None:
    made = stream(lru=[400.0, 300, 220, *[211] * 6], lfu=[400.0, 209, *[200] * 7], fbgemm_lfu=[400.0, 300, *[200] * 7])
    reached = [drift_board.batches_to_reach(made, name, 200, 4) for name in ("lru", "lfu", "fbgemm_lfu")]
    assert reached == [None, 8, 12]
    said = drift_board.verdict(made, 4)
    assert said.endswith("`lfu` is the first to come within 5 % of it, after 8 batches, and `lru` never does.")
