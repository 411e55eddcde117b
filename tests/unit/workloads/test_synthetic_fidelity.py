"""The stream beside real rows, at equal row counts. The samples may be read here, never committed."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workloads.schema import SCHEMAS
from workloads.synthetic import SyntheticWorkload

FOLDER = Path(os.environ.get("EMBEDDING_OFFLOAD_DATA") or Path(__file__).parents[4] / "shared" / "data")
FILES = {
    "criteo_kaggle": "criteo_kaggle_sample.tsv.gz",
    "avazu": "avazu_sample.csv.gz",
    "criteo_1tb": "criteo_1tb_sample.tsv.gz",
}


def real_counts(dataset):
    path = FOLDER / FILES[dataset]
    if not path.exists():
        pytest.skip(f"{path} is absent: set EMBEDDING_OFFLOAD_DATA to the folder with {FILES[dataset]}")
    schema = SCHEMAS[dataset]
    names = [name for name, _ in schema.categorical]
    layout = {} if dataset == "avazu" else {"sep": "\t", "header": None, "names": ["label", *schema.dense, *names]}
    rows = pd.read_csv(path, dtype=str, **layout)[names].fillna("missing")
    return len(rows), {name: rows[name].value_counts().to_numpy() for name in names}


@pytest.fixture(scope="module", params=list(FILES))
def both(request):
    rows, real = real_counts(request.param)
    workload = SyntheticWorkload.create(request.param, batch_size=rows, seed=5)
    ids = workload.batch(0).features.values().view(len(workload.tables), -1).numpy()
    drawn = {name: np.unique(table, return_counts=True)[1] for name, table in zip(real, ids, strict=True)}
    return real, drawn


def share_of_the_top(counts, fraction):
    pooled = np.sort(np.concatenate(list(counts.values())))[::-1]
    return pooled[: max(1, int(pooled.size * fraction))].sum() / pooled.sum()


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.05, 0.1])
def test_most_frequent_ids_take_the_share_of_accesses_that_they_take_in_real_rows(both, fraction):
    real, drawn = both
    assert share_of_the_top(drawn, fraction) == pytest.approx(share_of_the_top(real, fraction), abs=0.03)


def test_as_many_distinct_ids_are_drawn_as_in_real_rows(both):
    real, drawn = both
    assert sum(map(len, drawn.values())) == pytest.approx(sum(map(len, real.values())), rel=0.10)


def test_every_large_table_has_about_as_many_distinct_ids_as_in_real_rows(both):
    real, drawn = both
    large = {name: (len(drawn[name]), len(counts)) for name, counts in real.items() if len(counts) > 1000}
    assert large
    for name, (ours, theirs) in large.items():
        assert ours == pytest.approx(theirs, rel=0.25), name
