"""Lines through points, and what steps count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.advise.costs import COUNTED, Counts, Line, fitted
from suite.simulate.models.model import Tally

POINTS = [
    Counts(lookups=n, distinct=u, misses=m, rows_fetched=m, rows_written_back=w)
    for n, u, m, w in (
        (100, 90, 80, 70),
        (100, 20, 5, 2),
        (25, 24, 20, 0),
        (100, 90, 10, 10),
        (60, 50, 1, 9),
        (10, 9, 9, 1),
    )
]


@given(st.lists(st.floats(0, 1e-3), min_size=5, max_size=5))
def test_line_is_found_again_from_its_own_points(coefficients: list[float]) -> None:
    fixed, *rest = coefficients
    line = Line(fixed_s=fixed, per_lookup_s=rest[0], per_distinct_s=rest[1], per_miss_s=rest[2], per_moved_s=rest[3])
    found = fitted([(counts, line.seconds(counts)) for counts in POINTS], over=tuple(COUNTED))
    for counts in POINTS:
        assert found.seconds(counts) == pytest.approx(line.seconds(counts), rel=1e-6, abs=1e-9)
    assert found.error < 1e-5


def test_no_coefficient_is_negative_where_plain_least_squares_would_have_one() -> None:
    falling = [(Counts(lookups=n, distinct=0), 1.0 - n / 1000) for n in (100, 200, 300)]
    found = fitted(falling, over=("lookups",))
    assert found.per_lookup_s == 0
    assert found.fixed_s == pytest.approx(0.8)
    assert found.error == pytest.approx(np.sqrt(0.02 / 3) / 0.8)


def test_no_line_of_the_same_kind_comes_closer() -> None:
    generator = np.random.default_rng(0)
    points = [(counts, float(generator.random())) for counts in POINTS]

    def far(line: Line) -> float:
        return sum((line.seconds(counts) - seconds) ** 2 for counts, seconds in points)

    best = fitted(points, over=("lookups", "misses"))
    for _ in range(300):
        changed = best.model_copy(
            update={
                name: max(0.0, getattr(best, name) + float(generator.normal()) * 1e-3)
                for name in ("fixed_s", "per_lookup_s", "per_miss_s")
            }
        )
        assert far(changed) >= far(best) - 1e-12


def test_what_a_line_does_not_depend_on_costs_nothing() -> None:
    found = fitted([(counts, 1.0) for counts in POINTS], over=("moved",))
    assert (found.per_lookup_s, found.per_distinct_s, found.per_miss_s) == (0, 0, 0)
    assert found.seconds(POINTS[0]) == pytest.approx(1.0)


def test_misses_multiply_up_to_all_distinct_rows() -> None:
    counts = Counts(lookups=100, distinct=50, misses=10, rows_fetched=10, rows_written_back=8)
    assert counts.with_misses(2).misses == 20
    assert counts.with_misses(2).moved == 36
    assert counts.with_misses(100).misses == 50
    assert Counts(lookups=1, distinct=1).with_misses(7).misses == 0


def test_counts_are_averages_of_a_tally() -> None:
    tally = Tally(
        np.zeros((1, 2), np.int64),
        batches=4,
        lookups=400,
        unique_ids=200,
        unique_misses=40,
        rows_fetched=36,
        rows_written_back=20,
        overflow_batches=1,
    )
    counts = Counts.of(tally, largest=77)
    assert (counts.lookups, counts.distinct, counts.misses, counts.moved) == (100, 50, 10, 14)
    assert (counts.overflow_share, counts.largest) == (0.25, 77)
