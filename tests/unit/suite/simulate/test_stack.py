import numpy as np
from hypothesis import strategies as st

from suite.simulate.lru_stacks import LARGEST, LOOKUPS, ON_STACK, UNIQUE, LruStacks, RowSample
from systems.freq_cache.cache.plan import Ids


class ListedStack:
    """An LRU stack as a list, the most recent row last, and how deep the rows of batches lay."""

    def __init__(self):
        self.rows, self.depths, self.unique, self.lookups, self.largest = [], [], 0, 0, 0

    def access(self, rows, occurrences, *, counted):
        self.largest = max(self.largest, len(rows))
        if counted:
            self.unique += len(rows)
            self.lookups += sum(occurrences)
            place = {row: at for at, row in enumerate(self.rows)}
            self.depths += [len(self.rows) - 1 - place[row] for row in rows if row in place]
        moved = set(rows)
        self.rows = [row for row in self.rows if row not in moved] + rows


def batches_of(sizes):
    """Batches of distinct rows of stacks of these sizes, with occurrences."""
    rows = st.lists(st.integers(0, sum(sizes) - 1), unique=True, max_size=sum(sizes))
    return st.lists(rows.flatmap(lambda rows: st.tuples(st.just(rows), _occurrences(len(rows)))), max_size=12)


def _occurrences(count):
    return st.lists(st.integers(1, 9), min_size=count, max_size=count)


def follow(sizes, batches, *, counted_from):
    """The stacks after batches, and lists that saw the same."""
    stacks = LruStacks(np.array(sizes), most=1000)
    lists = [ListedStack() for _ in sizes]
    ends = np.cumsum(sizes)
    for number, (rows, occurrences) in enumerate(batches):
        counted = number >= counted_from
        stacks.access(np.array(rows, np.int32), np.array(occurrences, np.int32), counted=counted)
        for place, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            mine = [i for i, row in enumerate(rows) if end - size <= row < end]
            lists[place].access([rows[i] for i in mine], [occurrences[i] for i in mine], counted=counted)
    return stacks, lists


def same(stacks, lists):
    for place, expected in enumerate(lists):
        totals = stacks.totals[place]
        assert totals[UNIQUE] == expected.unique
        assert totals[LOOKUPS] == expected.lookups
        assert totals[ON_STACK] == len(expected.rows)
        assert totals[LARGEST] == expected.largest
        found = stacks.depths(place)
        assert found.tolist() == np.bincount(np.array(expected.depths, np.int64), minlength=found.size).tolist()


def test_depths_stay_right_when_slots_run_out_and_rows_are_numbered_anew():
    generator = np.random.default_rng(0)
    sizes = [700, 3, 1500]
    batches = []
    for _ in range(200):
        rows = generator.permutation(sum(sizes))[: generator.integers(1, 900)].tolist()
        batches.append((rows, generator.integers(1, 5, len(rows)).tolist()))
    # each stack has 8,192 slots
    assert sum(row >= 703 for rows, _ in batches for row in rows) > 4 * 8192
    same(*follow(sizes, batches, counted_from=10))


def test_a_row_is_always_or_never_in_the_sample():
    sizes = np.array([1_000, 1_000])
    sample = RowSample(sizes, np.array([0.3, 0.3]), by_table=False)
    generator = np.random.default_rng(1)
    number = {}
    for _ in range(20):
        values = generator.integers(0, 1_000, 300)
        for table in (0, 1):
            starts = np.array([1_000 * table])
            for value in values:
                found = sample.of(Ids(np.array([value]), np.array([1]), starts)).tolist()
                assert number.setdefault((table, int(value)), found) == found
    assert 400 < sum(map(len, number.values())) < 800
    # of two lists of ids the answers are those of the single ids, in order
    both = sample.of(Ids(np.concatenate([values, values]), np.array([300, 600]), np.array([0, 1_000])))
    assert both.tolist() == [one for table in (0, 1) for value in values for one in number[table, int(value)]]
