import itertools
import json

import numpy as np
import pytest
from fit_profiles import STATISTICS_FILE, expected_distinct, fit_dataset

from workloads.schema import CRITEO_1TB, MLPERF_DLRM_V2, SCHEMAS
from workloads.streams.profiles import PROFILES_FILE, load_profile
from workloads.streams.zipf import RankLaw

DATASETS = ("criteo_kaggle", "avazu", "criteo_1tb")


@pytest.fixture(scope="module")
def measured():
    return json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("dataset", DATASETS)
def test_committed_profile_is_what_the_fit_writes_for_the_schema_and_names_its_source(dataset, measured):
    committed = json.loads(PROFILES_FILE.read_text(encoding="utf-8"))[dataset]
    fitted = fit_dataset(SCHEMAS[dataset], measured[dataset])
    assert "@" in committed["source"]
    assert {name: table["rows"] for name, table in committed["tables"].items()} == dict(SCHEMAS[dataset].categorical)
    assert list(committed["dense"]) == list(SCHEMAS[dataset].dense)
    for name, table in fitted.pop("tables").items():
        own = committed["tables"][name]
        assert table.pop("head") == pytest.approx(own.pop("head"), abs=1e-6), name
        assert table == pytest.approx(own, abs=1e-3), name
    assert fitted == {key: value for key, value in committed.items() if key != "tables"}


@pytest.mark.parametrize("dataset", DATASETS)
def test_dense_columns_are_missing_as_often_together_and_in_an_event_as_in_the_measured_rows(dataset, measured):
    counted = measured[dataset]["dense_missing"]
    profile = load_profile(dataset, rows=dict(SCHEMAS[dataset].categorical))
    share = profile.groups[profile.dense_group]
    for side, inside in (("inside", True), ("outside", False)):
        rows = sum(counted[side].values())
        coins = (np.arange(100_000) + 0.5) / 100_000 * (share if inside else 1.0 - share) + (0.0 if inside else share)
        missing = {
            name: np.any([(coins >= start) & (coins < stop) for start, stop in column.missing], axis=0)
            for name, column in profile.dense.items()
            if column.missing
        }
        for first, second in itertools.combinations_with_replacement(missing, 2):
            together = sum(n for pattern, n in counted[side].items() if {first, second} <= set(pattern.split()))
            assert (missing[first] & missing[second]).mean() == pytest.approx(together / rows, abs=1e-3)


@pytest.mark.parametrize("dataset", DATASETS)
def test_fitted_law_gives_the_measured_distinct_ids_and_heavy_hitters(dataset, measured):
    figures = measured[dataset]
    profile = load_profile(dataset, rows=dict(SCHEMAS[dataset].categorical))
    for name, table in profile.tables.items():
        column = figures["tables"][name]
        draws = figures["rows"] * (1.0 - table.forced)
        if column["distinct"] > 100:
            assert expected_distinct(table.law, draws) == pytest.approx(column["distinct"], rel=0.10), name
        if column["distinct"] > 1000:
            for rows, distinct in column["growth"].items():
                drawn = expected_distinct(table.law, int(rows) * (1.0 - table.forced))
                assert drawn == pytest.approx(distinct, rel=0.15), (name, rows)
        first = 1 if table.group is not None and not figures["groups_are_defaults"] else 0
        share = table.law.head[first]
        if figures["groups_are_defaults"]:
            share = share * (1.0 - table.forced) + table.forced
        assert share == pytest.approx(column["top1"], abs=1e-4), name


@pytest.mark.parametrize("rows", [900, 60_000])
def test_expected_distinct_matches_the_sum_over_all_ranks(rows):
    law = RankLaw(rows=rows, head=(0.3, 0.1, 0.05), exponent=1.05, shift=10.0)
    probabilities = law.probabilities(0, rows)
    draws = 5000
    assert expected_distinct(law, draws) == pytest.approx((1 - (1 - probabilities) ** draws).sum(), rel=1e-3)


def test_laws_of_other_table_sizes_give_the_distinct_ids_measured_on_criteo_1tb():
    draws = 80_000
    criteo = load_profile("criteo_1tb", rows=dict(CRITEO_1TB.categorical))
    resized = load_profile(MLPERF_DLRM_V2.profile, rows=dict(MLPERF_DLRM_V2.categorical))
    for name, table in resized.tables.items():
        expected = expected_distinct(criteo.tables[name].law, draws)
        assert expected_distinct(table.law, draws) == pytest.approx(expected, rel=0.05), name
        assert table.law.head == criteo.tables[name].law.head
