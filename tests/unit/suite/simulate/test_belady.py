"""Bounds are what can be reached and no more: against every possible choice, and their own rules told with sets."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, setting

from suite.simulate.models.belady import BeladyModel, CompulsoryModel
from suite.simulate.models.model import Tally, replay
from suite.simulate.trace import replayed
from systems.freq_cache.cache.policy import level_of

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WAYS = [(bypass, warm) for bypass in ("off", "on") for warm in ("off", "frequent")]


Batches = Sequence[frozenset[int]]
"""The rows of every batch."""


def subsets(rows: frozenset[int], most: int) -> Iterator[frozenset[int]]:
    for size in range(min(most, len(rows)) + 1):
        yield from map(frozenset, combinations(sorted(rows), size))


def least_misses(batches: Batches, *, slots: int, bypass: bool, start: frozenset[int], counted_from: int) -> int:
    """The fewest counted misses over all choices of rows that stay after each batch, and of a start among some rows.

    A batch larger than the cache, or any batch with `bypass`, may leave out rows of its own.
    """
    costs = dict.fromkeys(subsets(start, slots), 0)
    for number, batch in enumerate(batches):
        after: dict[frozenset[int], int] = {}
        for held, cost in costs.items():
            paid = cost + (len(batch - held) if number >= counted_from else 0)
            for kept in subsets(held | batch, slots):
                if (bypass or len(batch) > slots or batch <= kept) and paid < after.get(kept, paid + 1):
                    after[kept] = paid
        costs = after
    return min(costs.values())


class BruteForceBelady:
    """Keeps what is used next, counted batch by counted batch.

    Attributes:
        misses: Of every batch.
        back: Changed rows that left while a batch had its turn.
    """

    def __init__(self, batches: Batches, *, slots: int, bypass: bool, start: frozenset[int], counted_from: int) -> None:
        self.misses: list[int] = []
        self.back: list[int] = []
        never = len(batches)

        def next_use(row: int, now: int) -> int:
            """The next counted use; never, if a batch that is not counted brings the row back before."""
            later = next((n for n in range(now + 1, never) if row in batches[n]), never)
            return later if later >= counted_from else never + 1

        wanted = [row for row in sorted(start) if next_use(row, -1) < never]
        held = frozenset(sorted(wanted, key=lambda row: next_use(row, -1))[:slots])
        unchanged = held
        for now, batch in enumerate(batches):
            self.misses.append(len(batch - held))
            unchanged -= batch
            pinned = frozenset() if bypass or len(batch) > slots else batch

            def order(row: int, now: int = now, unchanged: frozenset[int] = unchanged) -> tuple[int, bool]:
                return next_use(row, now), row in unchanged

            others = sorted((held | batch) - pinned, key=order)
            kept = pinned | frozenset(others[: slots - len(pinned)])
            kept = frozenset(row for row in kept if next_use(row, now) <= never)  # the others are worth nothing
            self.back.append(len((held | batch) - kept - unchanged))
            held = kept


class RowTrace(ListedTrace):
    """Rows written out batch by batch, repeats welcome; the first half of them is one table, the rest another."""

    def __init__(self, rows: int, batches: Sequence[Sequence[int]], frequencies: Sequence[int] | None = None) -> None:
        in_order = [sorted(batch, key=lambda row: row >= rows // 2) for batch in batches]
        super().__init__((rows // 2, rows - rows // 2), in_order, range(rows) if frequencies is None else frequencies)

    def start(self, warm: str, slots: int) -> frozenset[int]:
        """The rows that a cache may start with."""
        levels = [level_of(int(frequency)) for frequency in self.counts]
        lowest = {"off": 1 << 30, "frequent": sorted(levels)[-min(slots, self.rows)]}[warm]
        return frozenset(row for row in range(self.rows) if levels[row] >= lowest)

    @property
    def sets(self) -> list[frozenset[int]]:
        return [frozenset(batch) for batch in self.batches]


def batches_of(rows: int, *, most: int, longest: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, rows - 1), max_size=longest), min_size=1, max_size=most)


@pytest.mark.parametrize(("bypass", "warm"), WAYS)
@SETTINGS
@given(batches=batches_of(6, most=6, longest=5), slots=st.integers(1, 5), data=st.data())
def test_no_choice_of_rows_misses_fewer(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(6, batches, data.draw(st.lists(st.sampled_from([0, 1, 2, 50, 51, 90]), min_size=6, max_size=6)))
    counted_from = data.draw(st.integers(0, trace.length))
    tally = replay(BeladyModel(setting(trace, slots, counted_from), {"bypass": bypass, "warm": warm}))
    assert tally.unique_misses == least_misses(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )


@pytest.mark.parametrize(("bypass", "warm"), WAYS)
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
    model = BeladyModel(setting(trace, slots, counted_from), {"bypass": bypass, "warm": warm})
    misses, back = [], []
    for batch in replayed(trace, 0, trace.length):
        tally = Tally()
        model.step(batch, tally)
        misses.append(tally.unique_misses)
        back.append(tally.rows_written_back)
    assert misses[counted_from:] == expected.misses[counted_from:]
    assert back[counted_from:] == expected.back[counted_from:]


def test_only_first_uses_are_compulsory() -> None:
    trace = RowTrace(6, [[0, 1], [1, 2, 2], [0, 3], [4, 0]])
    cold, frequent = (replay(CompulsoryModel(setting(trace, 2, 1), {"warm": warm})) for warm in ("off", "frequent"))
    assert (cold.unique_misses, cold.lookup_misses, cold.rows_written_back) == (3, 4, 0)
    assert frequent.unique_misses == 2  # rows 4 and 5 are the most frequent
