"""The streams beside real rows, at equal row counts. The samples may be read here, never committed."""

import itertools

import numpy as np
import pytest

from tests.bench.fidelity import (
    FOLDER,
    LONG,
    TOPS,
    Rows,
    all_lines,
    compare,
    draw_rows,
    expected_in_subset,
    groups,
    jointly_missing,
    read_rows,
)


def sample(dataset):
    path = FOLDER / LONG[dataset]
    if not path.exists():
        pytest.skip(f"{path} is absent: set EMBEDDING_OFFLOAD_DATA to the folder with {LONG[dataset]}")
    return read_rows(dataset, path)


@pytest.fixture(scope="module", params=list(LONG))
def dataset(request):
    return request.param


@pytest.fixture(scope="module")
def real(dataset):
    return sample(dataset)


def test_every_figure_of_the_stream_is_within_its_bound_of_the_whole_sample_and_of_its_halves(dataset, real):
    lines = [line for line in all_lines(dataset, parts=2, seeds=(5, 6)) if line.bound is not None]
    figures = {line.figure for line in lines if line.sample.endswith("rows")}
    assert {f"access share of the top {100 * top:g} % of ids" for top in TOPS} < figures
    assert {"distinct ids", "unique ids per lookup, batches of 2,048", *groups(dataset)} < figures
    assert sum(figure.startswith("distinct ids of ") for figure in figures) >= 3
    assert [line for line in lines if not line.holds] == []


def test_columns_of_a_group_go_missing_in_the_same_rows(dataset, real):
    drawn = draw_rows(dataset, rows=20_000, seed=7)
    shares = {name: jointly_missing(real, drawn, tables) for name, tables in groups(dataset).items() if len(tables) > 1}
    assert shares
    for name, (theirs, ours) in shares.items():
        assert ours == pytest.approx(theirs, abs=0.05), name


def test_columns_that_go_missing_apart_are_no_group(real, dataset):
    tables = next(tables for tables in groups(dataset).values() if len(tables) > 1)
    drawn = draw_rows(dataset, rows=20_000, seed=7)
    shifted = drawn.ids | {tables[1]: np.roll(drawn.ids[tables[1]], 1)}
    assert jointly_missing(real, Rows(shifted, {}), tables)[1] == 0.0


def test_rows_that_share_no_id_fail_every_figure(dataset, real):
    unique = Rows({name: np.arange(ids.size) for name, ids in real.ids.items()}, {})
    holding = {line.figure for line in compare(dataset, "", real, unique, bounded=True) if line.holds}
    assert holding <= {"distinct ids of device_ip"}  # nine real rows of ten have an address of their own


def test_expected_distinct_ids_of_a_subset_are_the_mean_over_all_subsets():
    ids = [0, 0, 0, 1, 1, 2, 3]
    subsets = list(itertools.combinations(range(len(ids)), 3))
    mean = np.mean([len({ids[row] for row in rows}) for rows in subsets])
    assert expected_in_subset([3, 2, 1, 1], rows=len(ids), subset=3) == pytest.approx(mean, rel=1e-12)
    assert expected_in_subset([3, 2, 1, 1], rows=len(ids), subset=len(ids)) == 4
