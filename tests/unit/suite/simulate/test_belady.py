"""Bounds are what can be reached and no more: against every possible choice, policies, and their own rules."""

from __future__ import annotations

import errno
import gc
import tempfile
from collections.abc import Sequence

import numpy as np
import pytest
from brute_force_bounds import BruteForceBelady, least_misses, windowed_misses
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from suite.simulate.models.belady import BeladyModel, CompulsoryModel, WindowedModel
from suite.simulate.models.model import CacheModel, CannotReplay, Setting, Span, Tally, replay
from suite.simulate.traces.next_use import NextUses, next_uses
from suite.simulate.traces.rates import rates_of
from suite.simulate.traces.trace import Int64s, Seen, Trace, WorkloadTrace, replayed
from systems.freq_cache.planner.planner import Ids, Planner
from systems.freq_cache.planner.policy import LFU, LRU, Policy, StaticFrequency, level_of
from workloads.streams.synthetic import SyntheticWorkload

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Written = Sequence[Sequence[int]]
"""Batches as lists of rows, repeats welcome."""


class RowTrace(Trace):
    """Rows written out batch by batch; the first half of them is one table, the rest another."""

    name = "rows"

    def __init__(self, rows: int, batches: Written, frequencies: Sequence[int] | None = None) -> None:
        self.half = rows // 2
        self.tables = (("a", self.half), ("b", rows - self.half))
        self.batches = batches
        self.length = len(batches)
        self.batch_lookups = max(map(len, batches), default=0)
        self.known = np.array(range(rows) if frequencies is None else frequencies, np.int64)

    def ids(self, index: int) -> Ids:
        a = [row for row in self.batches[index] if row < self.half]
        b = [row - self.half for row in self.batches[index] if row >= self.half]
        return Ids(np.array(a + b, np.int64), np.array([len(a), len(a) + len(b)], np.int64), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        return [self.known[: self.half], self.known[self.half :]]

    def start(self, warm: str, slots: int) -> frozenset[int]:
        """The rows that a cache may start with."""
        levels = [level_of(int(frequency)) for frequency in self.known]
        lowest = {"off": 1 << 30, "any": 0, "frequent": sorted(levels)[-min(slots, self.rows)]}[warm]
        return frozenset(row for row in range(self.rows) if levels[row] >= lowest)

    @property
    def sets(self) -> list[frozenset[int]]:
        return [frozenset(batch) for batch in self.batches]


def batches_of(rows: int, *, most: int, longest: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, rows - 1), max_size=longest), min_size=1, max_size=most)


def setting_of(trace: Trace, *, slots: int, counted_from: int = 0) -> Setting:
    return Setting(trace=trace, span=Span(counted_from=counted_from, stop=trace.length), slots=slots)


def belady(
    trace: Trace, *, slots: int, bypass: str = "off", warm: str = "frequent", counted_from: int = 0
) -> tuple[BeladyModel, Tally]:
    model = BeladyModel(setting_of(trace, slots=slots, counted_from=counted_from), {"bypass": bypass, "warm": warm})
    return model, replay(model)


def windowed(trace: Trace, *, slots: int, look_ahead: int, warm: str = "off") -> WindowedModel:
    return WindowedModel(setting_of(trace, slots=slots), {"look_ahead": str(look_ahead), "warm": warm})


def by_batch(model: CacheModel) -> tuple[list[int], list[int]]:
    """Misses and rows written back of every batch."""
    misses, back = [], []
    for batch in replayed(model.setting.trace, 0, model.setting.span.stop):
        tally = Tally.of(model.setting.trace)
        model.step(batch, tally)
        misses.append(tally.unique_misses)
        back.append(tally.rows_written_back)
    return misses, back


def policy_misses(trace: RowTrace, planner: Planner, *, look_ahead: int, warm: bool, counted_from: int = 0) -> int:
    """Counted misses of a planner that knows so many batches behind the one that it plans."""
    if warm:
        planner.warm_up()
    misses = 0
    announced = 0
    for number in range(trace.length):
        while announced < min(number + look_ahead + 1, trace.length):
            planner.announce(trace.ids(announced), changes=True)
            announced += 1
        plan = planner.plan()
        misses += plan.unique_misses if number >= counted_from else 0
    return misses


def policies(trace: RowTrace) -> list[Policy]:
    return [StaticFrequency(trace.frequencies()), LFU(trace.rows), LRU()]


@pytest.mark.parametrize("bypass", ["off", "on"])
@pytest.mark.parametrize("warm", ["off", "any", "frequent"])
@SETTINGS
@given(batches=batches_of(6, most=6, longest=5), slots=st.integers(1, 5), data=st.data())
def test_no_choice_of_rows_misses_fewer(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(6, batches, data.draw(st.lists(st.sampled_from([0, 1, 2, 50, 51, 90]), min_size=6, max_size=6)))
    counted_from = data.draw(st.integers(0, trace.length))
    _, tally = belady(trace, slots=slots, bypass=bypass, warm=warm, counted_from=counted_from)
    assert tally.unique_misses == least_misses(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )


@pytest.mark.parametrize("bypass", ["off", "on"])
@pytest.mark.parametrize("warm", ["off", "any", "frequent"])
@SETTINGS
@given(batches=batches_of(40, most=25, longest=16), slots=st.integers(1, 45), data=st.data())
def test_every_batch_is_as_the_rule_says(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(40, batches, data.draw(st.lists(st.integers(0, 9), min_size=40, max_size=40)))
    counted_from = data.draw(st.sampled_from([0, 1, trace.length // 2]))
    expected = BruteForceBelady(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )
    model = BeladyModel(setting_of(trace, slots=slots, counted_from=counted_from), {"bypass": bypass, "warm": warm})
    misses, back = by_batch(model)
    assert misses[counted_from:] == expected.misses[counted_from:]
    assert back[counted_from:] == expected.back[counted_from:]


@SETTINGS
@given(
    batches=batches_of(24, most=20, longest=14),
    slots=st.integers(1, 26),
    frequencies=st.lists(st.integers(0, 40), min_size=24, max_size=24),
    look_ahead=st.sampled_from([0, 1, 4]),
    data=st.data(),
)
def test_no_policy_misses_fewer_warmed_up_or_not(
    batches: list[list[int]], slots: int, frequencies: list[int], look_ahead: int, data: st.DataObject
) -> None:
    trace = RowTrace(24, batches, frequencies)
    counted_from = data.draw(st.sampled_from([0, trace.length // 2]))
    least, cold = (
        belady(trace, slots=slots, warm=warm, counted_from=counted_from)[1].unique_misses
        for warm in ("frequent", "off")
    )
    for policy, again in zip(policies(trace), policies(trace), strict=True):
        for warm, ranking, bound in ((True, policy, least), (False, again, cold)):
            planner = Planner(rows=trace.rows, slots=slots, policy=ranking)
            found = policy_misses(trace, planner, look_ahead=look_ahead, warm=warm, counted_from=counted_from)
            assert bound <= found, (type(ranking).__name__, warm)
    for warm, bound in (("frequent", least), ("off", cold)):
        setting = setting_of(trace, slots=slots, counted_from=counted_from)
        model = WindowedModel(setting, {"look_ahead": str(look_ahead), "warm": warm})
        assert bound <= replay(model).unique_misses


@SETTINGS
@given(
    batches=batches_of(24, most=20, longest=14),
    slots=st.integers(1, 26),
    frequencies=st.lists(st.integers(0, 40), min_size=24, max_size=24),
    data=st.data(),
)
def test_bounds_that_may_do_more_are_not_above_those_that_may_do_less(
    batches: list[list[int]], slots: int, frequencies: list[int], data: st.DataObject
) -> None:
    trace = RowTrace(24, batches, frequencies)
    counted_from = data.draw(st.sampled_from([0, trace.length // 2]))
    setting = setting_of(trace, slots=slots, counted_from=counted_from)
    by_start = []
    for warm in ("any", "frequent", "off"):
        compulsory = replay(CompulsoryModel(setting, {"warm": warm})).unique_misses
        past, together = (
            replay(BeladyModel(setting, {"bypass": bypass, "warm": warm})).unique_misses for bypass in ("on", "off")
        )
        assert compulsory <= past <= together
        by_start.append((compulsory, past, together))
    free, frequent, cold = np.array(by_start)
    assert (free <= frequent).all()
    assert (frequent <= cold).all()
    assert (cold <= free + slots).all()


@FEW
@given(batches=batches_of(12, most=12, longest=8), slots=st.integers(1, 13), data=st.data())
def test_a_fixed_hot_set_misses_no_fewer_than_the_bound_that_reads_past_the_cache(
    batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(12, batches)
    hot = data.draw(st.sets(st.integers(0, 11), max_size=slots))
    missed = sum(len(batch - hot) for batch in trace.sets)
    assert belady(trace, slots=slots, bypass="on", warm="any")[1].unique_misses <= missed


def test_rows_that_must_be_resident_together_push_out_what_would_have_been_kept() -> None:
    trace = RowTrace(4, [[0, 1], [2, 3], [0, 1]])
    assert belady(trace, slots=2, warm="off")[1].unique_misses == 6
    assert belady(trace, slots=2, warm="off", bypass="on")[1].unique_misses == 4


def test_batches_that_warm_up_are_used_to_hold_what_is_counted_later() -> None:
    trace = RowTrace(4, [[0, 1], [2], [3], [2], [0, 1]])
    _, tally = belady(trace, slots=3, warm="off", counted_from=4)
    assert (tally.unique_misses, tally.batches) == (0, 1)


def test_a_row_that_a_warming_batch_brings_back_gives_way_to_one_that_none_does() -> None:
    trace = RowTrace(4, [[0], [1], [2], [1], [0, 1]])  # after batch 1 both are held; row 1 returns, row 0 does not
    _, tally = belady(trace, slots=2, warm="off", counted_from=4)
    assert tally.unique_misses == 0


@FEW
@given(batches=batches_of(30, most=20, longest=12), slots=st.integers(1, 32), data=st.data())
def test_counters_agree_with_each_other(batches: list[list[int]], slots: int, data: st.DataObject) -> None:
    trace = RowTrace(30, batches)
    counted_from = data.draw(st.integers(0, trace.length - 1))
    setting = setting_of(trace, slots=slots, counted_from=counted_from)
    models: list[CacheModel] = [
        BeladyModel(setting, {"bypass": bypass, "warm": warm}) for bypass in ("off", "on") for warm in ("off", "any")
    ]
    models.append(WindowedModel(setting, {"look_ahead": "4", "warm": "frequent"}))
    models.append(CompulsoryModel(setting, {"warm": "off"}))
    counted = trace.batches[counted_from:]
    for model in models:
        tally = replay(model)
        assert tally.batches == len(counted)
        assert tally.lookups == sum(map(len, counted))
        assert tally.unique_ids == sum(len(set(batch)) for batch in counted)
        assert tally.unique_misses == tally.rows_fetched == tally.by_table[:, 1].sum()
        assert tally.unique_ids == tally.by_table[:, 0].sum()
        assert tally.lookup_misses is not None
        assert tally.unique_misses <= tally.lookup_misses <= tally.lookups
        assert tally.overflow_batches == sum(len(set(batch)) > model.slots for batch in counted)
        if isinstance(model, BeladyModel):
            assert tally.rows_fetched - min(slots, 30) <= tally.rows_written_back <= tally.rows_fetched


@FEW
@given(batches=batches_of(12, most=12, longest=8), slots=st.integers(1, 13))
def test_a_cache_that_starts_empty_writes_back_all_but_what_it_holds_at_the_end(
    batches: list[list[int]], slots: int
) -> None:
    trace = RowTrace(12, batches)
    used = len(frozenset().union(*trace.sets))
    for bypass in ("off", "on"):
        _, tally = belady(trace, slots=slots, bypass=bypass, warm="off")
        assert tally.rows_written_back == tally.rows_fetched - min(slots, used)


def test_missed_lookups_and_tables_are_those_of_the_rows_that_were_absent() -> None:
    trace = RowTrace(4, [[0, 0, 3], [0, 3, 3, 1, 1, 1]])
    _, tally = belady(trace, slots=4, warm="off", counted_from=1)
    assert tally.lookup_misses == 3
    assert tally.by_table.tolist() == [[2, 1], [1, 0]]


def test_a_warm_cache_starts_with_those_of_the_frequent_rows_that_are_used_first() -> None:
    trace = RowTrace(6, [[0, 1], [2], [3]], [5, 5, 9, 9, 7, 7])
    assert belady(trace, slots=3, warm="any")[1].unique_misses == 1
    assert belady(trace, slots=4, warm="any")[1].unique_misses == 0
    assert belady(trace, slots=4)[1].unique_misses == 2  # rows 2 to 5 are the most frequent
    assert belady(trace, slots=5)[1].unique_misses == 0  # one of 0 and 1 is the fifth, and either may be


def test_frequencies_that_the_cache_takes_for_equal_are_equal_to_the_bound() -> None:
    assert level_of(1000) == level_of(1001) > level_of(900)
    assert belady(RowTrace(4, [[0]], [1000, 1001, 0, 0]), slots=1)[1].unique_misses == 0
    assert belady(RowTrace(4, [[0]], [900, 1001, 0, 0]), slots=1)[1].unique_misses == 1


def test_only_first_uses_are_compulsory() -> None:
    trace = RowTrace(6, [[0, 1], [1, 2, 2], [0, 3], [4, 0]])
    cold = replay(CompulsoryModel(setting_of(trace, slots=2, counted_from=1), {"warm": "off"}))
    assert (cold.unique_misses, cold.lookup_misses, cold.rows_written_back) == (3, 4, 0)
    warm = replay(CompulsoryModel(setting_of(trace, slots=2, counted_from=1), {"warm": "any"}))
    assert warm.unique_misses == 1
    frequent = replay(CompulsoryModel(setting_of(trace, slots=2, counted_from=1), {"warm": "frequent"}))
    assert frequent.unique_misses == 2  # rows 4 and 5 are the most frequent


@pytest.mark.parametrize("warm", ["off", "frequent"])
@SETTINGS
@given(
    batches=batches_of(30, most=20, longest=14),
    slots=st.integers(1, 32),
    look_ahead=st.sampled_from([0, 1, 2, 4, 8]),
    frequencies=st.permutations(range(30)),
)
def test_windowed_does_as_its_rule_says(
    warm: str, batches: list[list[int]], slots: int, look_ahead: int, frequencies: list[int]
) -> None:
    trace = RowTrace(30, batches, frequencies)
    model = windowed(trace, slots=slots, look_ahead=look_ahead, warm=warm)
    misses, back = by_batch(model)
    expected, left = windowed_misses(
        trace.sets, slots=min(slots, 30), look_ahead=look_ahead, warm=warm != "off", frequencies=frequencies
    )
    assert misses == expected
    if warm == "off":
        assert back == left
    else:  # rows of the start that were never used leave unchanged
        assert all(written <= gone for written, gone in zip(back, left, strict=True))
        assert sum(left) - sum(back) <= slots


@SETTINGS
@given(
    batches=batches_of(20, most=15, longest=12),
    slots=st.integers(1, 22),
    frequencies=st.lists(st.integers(0, 3), min_size=20, max_size=20),
)
def test_a_window_over_the_whole_replay_misses_as_few_as_belady(
    batches: list[list[int]], slots: int, frequencies: list[int]
) -> None:
    trace = RowTrace(20, batches, frequencies)
    model = windowed(trace, slots=slots, look_ahead=32, warm="off")
    assert replay(model).unique_misses == belady(trace, slots=slots, warm="off")[1].unique_misses


@SETTINGS
@given(
    batches=batches_of(24, most=20, longest=8),
    slots=st.integers(8, 26),
    look_ahead=st.sampled_from([0, 1, 2, 4]),
    frequencies=st.permutations(range(24)),
)
@example(batches=[[0, 1], [2], [0], [1]], slots=8, look_ahead=1, frequencies=list(range(24)))
def test_windowed_equals_the_planner_where_the_planner_knows_frequencies_exactly(
    batches: list[list[int]], slots: int, look_ahead: int, frequencies: list[int]
) -> None:
    trace = RowTrace(24, batches, frequencies)
    for warm in ("off", "frequent"):
        planner = Planner(rows=24, slots=slots, policy=StaticFrequency(trace.frequencies()))
        expected = policy_misses(trace, planner, look_ahead=look_ahead, warm=warm != "off")
        tally = replay(windowed(trace, slots=slots, look_ahead=look_ahead, warm=warm))
        assert tally.unique_misses == expected


@FEW
@given(batches=batches_of(24, most=20, longest=8), slots=st.integers(8, 26))
def test_of_equally_frequent_rows_the_one_used_longest_ago_leaves(batches: list[list[int]], slots: int) -> None:
    trace = RowTrace(24, batches, [7] * 24)
    stack: list[int] = []  # the row used longest ago first
    misses = 0
    for batch in replayed(trace, 0, trace.length):
        rows = batch.unique[0].tolist()
        misses += sum(row not in stack for row in rows)
        stack = ([row for row in stack if row not in rows] + rows)[-slots:]
    assert replay(windowed(trace, slots=slots, look_ahead=0)).unique_misses == misses


def test_a_longer_window_misses_fewer_on_a_synthetic_stream() -> None:
    made = SyntheticWorkload.create("criteo_kaggle", batch_size=256, seed=3, max_rows=200_000)
    trace = WorkloadTrace(made)
    span = Span(counted_from=10, stop=40)
    setting = Setting(trace=trace, span=span, slots=20_000)
    found = [
        replay(WindowedModel(setting, {"look_ahead": n, "warm": "off"})).unique_misses for n in ("0", "1", "4", "16")
    ]
    bound = replay(BeladyModel(setting, {"bypass": "off", "warm": "off"})).unique_misses
    assert found[0] > found[1] > found[2] > found[3] >= bound


@FEW
@given(batches=batches_of(20, most=12, longest=10))
def test_next_uses_are_those_found_by_searching(batches: list[list[int]]) -> None:
    trace = RowTrace(20, batches)
    stop = trace.length
    uses = NextUses(trace, stop)

    def search(row: int, start: int) -> int:
        return next((n for n in range(start, stop) if row in batches[n]), stop)

    assert uses.first.tolist() == [search(row, 0) for row in range(20)]
    for batch in replayed(trace, 0, stop):
        expected = [search(row, batch.number + 1) for row in batch.unique[0].tolist()]
        assert uses.of(batch.number).tolist() == expected


def test_next_uses_beyond_a_limit_of_memory_are_read_from_a_file() -> None:
    generator = np.random.default_rng(5)
    trace = RowTrace(50, [generator.integers(0, 50, 30).tolist() for _ in range(20)])
    kept, spooled, mixed = (NextUses(trace, 20, in_memory_bytes=limit) for limit in (1 << 20, 0, 300))
    for batch in (3, 19, 0, 3):
        assert kept.of(batch).tolist() == spooled.of(batch).tolist() == mixed.of(batch).tolist()


def test_a_full_drive_is_a_reason_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    trace = RowTrace(4, [[0, 1]])
    with pytest.raises(CannotReplay, match=r"do not fit in .*No space left on device.*fewer batches, or set TMPDIR"):
        NextUses(trace, 1, in_memory_bytes=0)


def test_batch_numbers_may_exceed_sixteen_bits() -> None:
    class Long(RowTrace):
        """Row 1 in the first batch and in the last, row 0 in all."""

        def ids(self, index: int) -> Ids:
            both = index in (0, self.length - 1)
            return Ids(np.zeros(1 + both, np.int64), np.array([1, 1 + both]), self.table_starts)

    trace = Long(2, [[0, 1]])
    trace.length = 65_540
    uses = NextUses(trace, trace.length)
    assert uses.first.tolist() == [0, 0]
    assert uses.of(0).tolist() == [1, 65_539]
    assert uses.of(65_538).tolist() == [65_539]
    assert uses.of(65_539).tolist() == [65_540, 65_540]


def test_next_uses_are_found_once_for_all_cache_sizes_and_let_go_with_their_trace() -> None:
    read: list[int] = []

    class Counting(RowTrace):
        def ids(self, index: int) -> Ids:
            read.append(index)
            return super().ids(index)

    trace = Counting(4, [[0, 1], [2], [3]])
    first = next_uses(trace, 3)
    assert next_uses(trace, 3) is first
    assert sorted(read) == [0, 1, 2]
    assert next_uses(trace, 2).never == 2
    del trace
    gc.collect()
    from suite.simulate.traces import next_use

    assert not [known for known in next_use._KNOWN if isinstance(known, Counting)]


def test_ranks_are_equal_only_where_frequencies_are() -> None:
    frequencies = [3, 0, (1 << 20) - 1, 1 << 20, 5 << 40, 0, 3, (1 << 20) + 1, 1 << 20, 1]
    rates = rates_of(RowTrace(10, [[0]], frequencies))
    distinct, expected, rows = np.unique(frequencies, return_inverse=True, return_counts=True)
    assert rates.of.tolist() == expected.tolist()
    assert rates.frequencies.tolist() == distinct.tolist()
    assert rates.rows.tolist() == rows.tolist()
    assert [rates.bar(slots) for slots in (1, 3, 4, 10)] == [(5, 0), (4, 1), (3, 0), (-1, 0)]
    assert [rates.lowest_frequent(slots) for slots in (1, 2, 4, 10)] == [6, 4, 4, 0]  # 2**20 + 1 rounds to 2**20


def test_more_slots_than_rows_hold_every_row() -> None:
    trace = RowTrace(6, [[0, 5], [3], [5, 0]])
    model, tally = belady(trace, slots=100, warm="off")
    assert (model.slots, tally.unique_misses, tally.rows_written_back) == (6, 3, 0)
    assert windowed(trace, slots=100, look_ahead=0).slots == 6


def test_an_empty_batch_is_counted_as_a_batch() -> None:
    trace = RowTrace(4, [[0], [], [0]])
    _, tally = belady(trace, slots=1, warm="off")
    assert (tally.batches, tally.unique_misses) == (3, 1)


def test_a_model_sees_batches_with_their_rows_in_order_of_first_occurrence() -> None:
    trace = RowTrace(6, [[4, 1, 4, 0]])
    (batch,) = list(replayed(trace, 0, 1))
    assert isinstance(batch, Seen)
    assert batch.unique[0].tolist() == [1, 0, 4]
    assert NextUses(trace, 1).of(0).size == 3
