"""How fbgemm orders the ways of a set, and which set a row belongs to."""

from brute_force_fbgemm import murmur_set
from hypothesis import given
from hypothesis import strategies as st

from suite.simulate.models.fbgemm import set_of

keys_of_a_warp = st.lists(st.integers(-1, 3), min_size=32, max_size=32)


def test_rows_hash_to_the_sets_that_fbgemm_chooses() -> None:
    """Source: `cache_slot` in fbgemm v1.8.0 `split_embeddings_cache/common.cuh`, computed by hand for these rows."""
    rows = [0, 1, 2, 5, 900]
    assert [int(set_of(row, 4)) for row in rows] == [0, 0, 3, 1, 3]
    assert [murmur_set(row, 4) for row in rows] == [0, 0, 3, 1, 3]


@given(row=st.integers(0, 2**31 - 1), sets=st.integers(1, 2**26))
def test_any_row_hashes_as_integers_of_any_size_would(row: int, sets: int) -> None:
    assert set_of(row, sets) == murmur_set(row, sets)
