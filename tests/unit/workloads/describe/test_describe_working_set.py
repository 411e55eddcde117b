from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads.describe.working_set import WINDOWS, WorkingSets

TABLES = (5, 30)
BAGS = st.lists(st.tuples(*(st.lists(st.integers(0, rows - 1), max_size=3) for rows in TABLES)), max_size=24)


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
    windows = measured(samples, batch_size=batch_size, block=block).figures()
    batches = len(samples) // batch_size
    assert [window.batches for window in windows] == [length for length in WINDOWS if length <= batches]
    for window in windows:
        size = window.batches * batch_size
        parts = [samples[start : start + size] for start in range(0, batches * batch_size - size + 1, size)]
        rows = [[(table, id_) for sample in part for table in (0, 1) for id_ in sample[table]] for part in parts]
        distinct, accesses = [len(set(part)) for part in rows], sum(map(len, rows))
        assert window.windows == len(parts)
        assert (window.mean_distinct, window.max_distinct) == (sum(distinct) / len(parts), max(distinct))
        assert window.unique_share == (sum(distinct) / accesses if accesses else None)
