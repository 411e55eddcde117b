import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.streams.zipf import RankScrambler


def scrambler(rows, seed=0):
    return RankScrambler(rows, generator=np.random.Philox(key=seed))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(1, 3000), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_every_row_is_the_id_of_exactly_one_rank(rows, seed):
    scramble = scrambler(rows, seed)
    for table, count in enumerate(rows):
        ids = scramble.table_ids(table, np.arange(count))
        assert np.array_equal(np.sort(ids), np.arange(count))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.one_of(st.integers(1, 9), st.integers(2**25, 2**40)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_all_tables_at_once_agree_with_one_table_at_a_time(rows, seed):
    scramble = scrambler(rows, seed)
    generator = np.random.default_rng(seed)
    ranks = np.stack([generator.integers(0, count, 50) for count in rows])
    together = scramble.ids(ranks.reshape(-1), np.arange(len(rows) + 1) * 50).reshape(ranks.shape)
    assert together.dtype == np.int64
    for table, count in enumerate(rows):
        assert np.array_equal(together[table], scramble.table_ids(table, ranks[table]))
        assert together[table].max() < count
        assert len(np.unique(together[table])) == len(np.unique(ranks[table]))


@pytest.mark.parametrize("rows", [1460, 10_131_227, 48_937_457])
def test_id_order_says_nothing_about_rank_order(rows):
    ranks = np.arange(min(rows, 20_000))
    ids = scrambler([rows]).table_ids(0, ranks)
    assert abs(np.corrcoef(ranks, ids)[0, 1]) < 0.08
    tenths = np.bincount(ids[:1000] * 10 // rows, minlength=10)
    assert tenths.min() > 60, "the most frequent ranks crowd into a part of the table"
