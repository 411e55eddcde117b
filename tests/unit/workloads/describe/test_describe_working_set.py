from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads.describe.working_set import WorkingSets

TABLES = (5, 30)
BAGS = st.lists(st.tuples(*(st.lists(st.integers(0, rows - 1), max_size=3) for rows in TABLES)), max_size=40)


def measured(samples, *, batch_size, block):
    sets = WorkingSets(TABLES, batch_size=batch_size, samples=len(samples))
    for first in range(0, len(samples), block):
        for table in range(len(TABLES)):
            bags = [sample[table] for sample in samples[first : first + block]]
            offsets = np.cumsum([0, *map(len, bags)])
            sets.access(table, np.array(list(chain(*bags)), np.int64), offsets, first_sample=first)
    return sets


@given(BAGS, st.integers(1, 6), st.integers(1, 9))
def test_windows_hold_as_many_distinct_rows_as_sets_of_them(samples, batch_size, block):
    sets = measured(samples, batch_size=batch_size, block=block)
    windows = sets.counts()
    batches = len(samples) // batch_size
    assert [window.batches for window in windows] == [1 << n for n in range(batches.bit_length())]
    for window in windows:
        size = window.batches * batch_size
        parts = [samples[start : start + size] for start in range(0, batches * batch_size - size + 1, size)]
        rows = [[(table, id_) for sample in part for table in (0, 1) for id_ in sample[table]] for part in parts]
        assert window.distinct.tolist() == [len(set(part)) for part in rows]
        assert window.accesses == sum(map(len, rows))


@given(BAGS, st.integers(1, 6))
def test_sums_by_table_are_over_full_batches(samples, batch_size):
    by_table = measured(samples, batch_size=batch_size, block=4).by_table
    batches = len(samples) // batch_size
    parts = [samples[n * batch_size : (n + 1) * batch_size] for n in range(batches)]
    for table in (0, 1):
        ids = [[id_ for sample in part for id_ in sample[table]] for part in parts]
        assert by_table[table].tolist() == [sum(len(set(part)) for part in ids), sum(map(len, ids))]


def test_stream_without_a_full_batch_has_no_windows():
    sets = measured([([1], [2])] * 3, batch_size=4, block=2)
    assert (sets.batches, sets.counts(), sets.by_table.tolist()) == (0, [], [[0, 0], [0, 0]])
