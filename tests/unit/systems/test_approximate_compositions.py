"""Rows composed of parameters, against the formulas written out in numpy and plain Python."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from systems.approximate.composed import Composition, salt_of
from systems.approximate.hashed import HashedRows, hash_ids
from systems.approximate.qr import QuotientRemainder
from systems.approximate.tt_rec import TensorTrain
from tests.contract.scenes import table

few_rows = st.integers(1, 80)
dims = st.sampled_from([4, 8, 12, 16, 20, 28, 32])
shares = st.sampled_from([4, 16, 64])


def parameters_and_rows(made: Composition) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parameters, and all rows composed of them."""
    draw = torch.Generator().manual_seed(0)
    parameters = {name: torch.randn(shape, generator=draw) for name, shape in made.shapes.items()}
    rows = made.compose(parameters, torch.arange(made.rows))
    assert rows.shape == (made.rows, made.dim)
    return {name: values.numpy() for name, values in parameters.items()}, rows.numpy()


@given(few_rows, dims, st.integers(1, 5))
def test_row_of_a_tensor_train_is_the_product_of_a_slice_of_each_core(rows, dim, rank):
    made = TensorTrain(table("t", rows, dim), rank)
    parameters, found = parameters_and_rows(made)
    (n1, n2, n3), (d1, d2, d3) = made.bases, made.dims
    first = parameters["first"].reshape(n1, d1, rank)
    middle = parameters["middle"].reshape(n2, rank, d2, rank)
    last = parameters["last"].reshape(n3, rank, d3)
    for row in range(rows):
        i1, rest = divmod(row, n2 * n3)
        i2, i3 = divmod(rest, n3)
        block = np.stack([first[i1] @ middle[i2, :, b, :] @ last[i3] for b in range(d2)], axis=1)
        np.testing.assert_allclose(found[row], block.reshape(-1), rtol=0, atol=1e-4)


@given(st.integers(1, 10**12), dims)
def test_bases_and_blocks_of_a_tensor_train_hold_every_row_and_little_more(rows, dim):
    made = TensorTrain(table("t", rows, dim), 2)
    assert rows <= np.prod(made.bases) <= rows * 1.5 + 8
    assert np.prod(made.dims) == dim
    assert made.dims[1] == min(made.dims)
    ends = [int(digit) for digit in made.places(torch.tensor([rows - 1]))]
    assert all(0 <= digit < base for digit, base in zip(ends, made.bases, strict=True))


@given(few_rows, dims, shares)
def test_row_of_quotient_and_remainder_is_the_product_of_two_rows(rows, dim, collisions):
    ids = np.arange(rows)
    parameters, found = parameters_and_rows(QuotientRemainder(table("t", rows, dim), collisions))
    expected = parameters["quotient"][ids // collisions] * parameters["remainder"][ids % collisions]
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found, axis=0)) == rows


@given(few_rows, dims, shares)
def test_rows_of_one_hash_are_one_row(rows, dim, compression):
    parameters, found = parameters_and_rows(HashedRows(table("t", rows, dim), compression))
    assert len(parameters["buckets"]) == -(-rows // compression)
    buckets = hash_ids(torch.arange(rows), salt_of("t")) % len(parameters["buckets"])
    np.testing.assert_array_equal(found, parameters["buckets"][buckets.numpy()])


def wrapped(value: int) -> int:
    """As int64 keeps it."""
    return (value + 2**63) % 2**64 - 2**63


@given(st.lists(st.integers(0, 2**62), min_size=1), st.integers(0, 2**32 - 1))
def test_hash_is_the_finalizer_of_splitmix64(ids, salt):
    found = hash_ids(torch.tensor(ids), salt).tolist()
    for key, hashed in zip(ids, found, strict=True):
        mixed = wrapped(key + (salt << 31))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = wrapped((mixed ^ (mixed >> shift)) * factor)
        assert hashed == (mixed ^ (mixed >> 31)) & (2**31 - 1)


def test_ids_that_meet_in_one_table_do_not_meet_in_another():
    users, shops = (hash_ids(torch.arange(20_000), salt_of(name)).view(-1, 2) % 100 for name in ("users", "shops"))
    meet = users[:, 0] == users[:, 1]
    assert meet.sum() > 60
    assert (meet & (shops[:, 0] == shops[:, 1])).sum() <= 8  # 1 in 100 by chance
