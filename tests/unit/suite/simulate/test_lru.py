"""LRU does by the batch what its rule says of rows, told with a list; curves have its misses at every size."""

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, skewed_trace, traces

from suite.simulate.curves import miss_curves
from suite.simulate.models.lru import LruModel
from suite.simulate.models.model import Setting, Span, replay

SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def told(trace: ListedTrace, slots: int) -> list[Step]:
    """A list of cached rows, the next to leave first."""
    cached: list[int] = []
    steps = []
    for index in range(trace.length):
        rows = entering = trace.distinct(index)
        before = set(cached)
        missing = [row for row in rows if row not in before]
        if len(rows) > slots:  # only free slots are filled, the others are trained past the cache
            entering = [row for row in rows if row in cached or row in missing[: slots - len(cached)]]
        stays = set(entering)
        kept = [*(row for row in cached if row not in stays), *entering]
        kept = kept[max(0, len(kept) - slots) :]
        steps.append(Step(set(missing), len(missing), len(missing) + len(cached) - len(kept)))
        cached = kept
    return steps


@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_the_model_equals_a_list(trace: ListedTrace, slots: int, counted_from: int) -> None:
    slots = min(slots, trace.rows)
    assert_counts(LruModel(setting(trace, slots, min(counted_from, trace.length)), {}), told(trace, slots))


def assert_curves_are_the_models(trace: ListedTrace, span: Span, sizes: Iterable[int]) -> None:
    curves = miss_curves(trace, span, per_table=True)
    assert curves.batches == span.stop - span.counted_from
    for curve, part in ((curves.pooled, trace), *zip(curves.tables, map(trace.only, range(3)), strict=False)):
        for slots in (size for size in sizes if curve.least_slots <= size < curve.rows + 2):
            tally = replay(LruModel(Setting(trace=part, span=span, slots=slots), {}))
            counts = (curve.misses(slots), curve.unique_ids, curve.lookups)
            assert counts == (tally.unique_misses, tally.unique_ids, tally.lookups), (curve.name, slots)


@SETTINGS
@given(trace=traces(), counted_from=st.integers(0, 3))
def test_a_curve_has_the_misses_of_every_size_from_the_largest_batch_on(trace: ListedTrace, counted_from: int) -> None:
    span = Span(counted_from=min(counted_from, trace.length - 1), stop=trace.length)
    assert_curves_are_the_models(trace, span, range(1, trace.rows + 2))


@pytest.fixture(scope="module")
def crowded() -> ListedTrace:
    """The slots of a stack run out, and its rows are numbered anew."""
    return skewed_trace(tables=[700, 3, 1500], batches=160, samples=600)


@pytest.mark.parametrize("slots", [1_200, 2_203])
def test_the_model_stays_right_when_the_slots_of_its_stack_run_out(crowded: ListedTrace, slots: int) -> None:
    assert assert_counts(LruModel(setting(crowded, slots, 20), {}), told(crowded, slots)).unique_ids > 4 * 8192


def test_curves_stay_right_when_the_slots_of_a_stack_run_out(crowded: ListedTrace) -> None:
    assert_curves_are_the_models(crowded, Span(counted_from=20, stop=crowded.length), (600, 900, 1_400, 1_700, 2_203))
