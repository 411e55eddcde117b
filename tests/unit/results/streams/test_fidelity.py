"""The streams beside real rows, at equal row counts. The samples may be read here, never committed."""

import itertools
import json
from pathlib import Path

import fidelity
import numpy as np
import pytest
from compared_rows import FOLDER, LONG, Rows, draw_rows, read_rows
from fidelity import DENSE_PAIR, MIXED_PAIR, TOPS, alike, all_figures, compare, groups, judged
from fit_profiles import STATISTICS_FILE
from sample_statistics import dense_missing, expected_in_subset, growth

from suite.tables.verdict import listed
from workloads.streams.synthetic import SyntheticWorkload


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
    found = all_figures(dataset, parts=2, seeds=(5,))
    figures = set(found["figure"][found["sample"].str.endswith("rows")])
    assert {f"access share of the top {100 * top:g} % of ids" for top in TOPS} < figures
    assert {"distinct ids", "unique ids per lookup, batches of 2,048", *groups(dataset)} < figures
    assert sum(figure.startswith("distinct ids of ") for figure in figures) >= 3
    assert found[~found["holds"]].empty, found[~found["holds"]].to_string()


@pytest.mark.parametrize("dataset", ["criteo_kaggle", "criteo_1tb"], indirect=True)
def test_integer_columns_that_go_missing_each_on_its_own_fail(dataset, real):
    drawn = draw_rows(dataset, rows=real.count, seed=7)
    generator = np.random.default_rng(0)
    apart = Rows(drawn.ids, drawn.missing, {name: generator.permutation(gaps) for name, gaps in drawn.gaps.items()})
    found = judged(compare(dataset, real, apart))
    together = {f"missing in {', '.join(names)}" for names in alike(real.gaps) if len(names) > 1}
    assert len(together) == 3
    failing = set(found["figure"][~found["holds"]])
    assert together < failing
    assert all(any(figure.startswith(pair) for figure in failing) for pair in (DENSE_PAIR, MIXED_PAIR))


def test_integer_columns_of_a_synthetic_batch_are_missing_where_their_values_are_0(dataset):
    drawn = draw_rows(dataset, rows=2_000, seed=3)
    dense = SyntheticWorkload.create(dataset, batch_size=2_000, seed=3).batch(0).dense.numpy().T
    assert any(gaps.any() for gaps in drawn.gaps.values())
    for values, gaps in zip(dense, drawn.gaps.values(), strict=True):
        assert not values[gaps].any()
        assert gaps.all() or values[~gaps].any()


def test_expected_distinct_ids_of_a_subset_are_the_mean_over_all_subsets():
    ids = [0, 0, 0, 1, 1, 2, 3]
    subsets = list(itertools.combinations(range(len(ids)), 3))
    mean = np.mean([len({ids[row] for row in rows}) for rows in subsets])
    assert expected_in_subset([3, 2, 1, 1], rows=len(ids), subset=3) == pytest.approx(mean, rel=1e-12)
    assert expected_in_subset([3, 2, 1, 1], rows=len(ids), subset=len(ids)) == 4


@pytest.mark.parametrize("dataset", ["criteo_kaggle", "avazu"], indirect=True)
def test_committed_statistics_are_those_of_the_samples(dataset, real):
    measured = json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))[dataset]
    assert growth(dataset) == {name: table["growth"] for name, table in measured["tables"].items()}
    assert dense_missing(dataset) == measured["dense_missing"]


def test_the_page_states_the_bounds() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "synthetic.md").read_text(encoding="utf-8")
    tops = listed(f"{100 * top:g}" for top in fidelity.TOPS)
    lines = [
        f"| share of accesses to the top {tops} % of ids, all tables pooled | {fidelity.TOP_BOUND} |",
        f"| distinct ids, all tables | {100 * fidelity.DISTINCT_BOUND:.0f} % |",
        f"| distinct ids of each table with more than {fidelity.LARGE_TABLE:,} in the sample | "
        f"{100 * fidelity.TABLE_BOUND:.0f} % |",
        f"| unique ids per lookup in batches of {fidelity.BATCH:,} | {100 * fidelity.UNIQUE_BOUND:.0f} % |",
        f"missing, all in the same rows | {fidelity.GROUP_BOUND} and three standard deviations of the draws |",
        f"| click rate, against the published one | {fidelity.CTR_BOUND} |",
    ]
    assert [line for line in lines if line not in page] == []
