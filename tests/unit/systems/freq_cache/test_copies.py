"""Rows are copied as torch copies them, whatever their width, their type and the distance between them."""

import pytest
import torch

from systems.freq_cache import compiled
from systems.freq_cache.compiled import put_rows

ROWS, COUNT = 500, 300


def rows_and_values(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-99, 99, (ROWS, *shape), generator=generator).to(dtype)
    values = torch.randint(-99, 99, (COUNT, *shape), generator=generator).to(dtype)
    return table, torch.randperm(ROWS, generator=generator)[:COUNT], values


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def parts(request, monkeypatch):
    monkeypatch.setattr(compiled, "cores", lambda: request.param)
    monkeypatch.setattr(compiled, "_PART_BYTES", 64)


@pytest.mark.parametrize("numbers", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), torch.float32),
        ((1,), torch.int32),
        ((4,), torch.float16),
        ((6,), torch.float16),
        ((33,), torch.float32),
        ((128,), torch.float32),
    ],
)
def test_rows_of_any_width_and_type(parts, shape, dtype, numbers):
    table, rows, values = rows_and_values(shape, dtype)
    expected = table.index_copy(0, rows, values)
    put_rows(table, rows.to(numbers), values)
    assert table.equal(expected)


@pytest.mark.parametrize("columns", [slice(0, 8), slice(1, 6), slice(3, 4)])
def test_some_columns_of_records(parts, columns):
    table, rows, values = rows_and_values((9,), torch.float32)
    expected = table.clone()
    expected[rows, columns] = values[:, columns]
    put_rows(table[:, columns], rows, values[:, columns])
    assert table.equal(expected)


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_row_that_is_not_there_is_refused(parts, bad):
    table, rows, values = rows_and_values((8,), torch.float32)
    rows[COUNT // 2] = bad
    before = table.clone()
    with pytest.raises(IndexError, match=f"a table of 500 rows has no row {bad}$"):
        put_rows(table, rows, values)
    untouched = torch.ones(ROWS, dtype=torch.bool)
    untouched[rows[(rows >= 0) & (rows < ROWS)]] = False
    assert table[untouched].equal(before[untouched])
