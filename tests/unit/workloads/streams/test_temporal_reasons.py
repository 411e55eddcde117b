"""What the defaults of the tracks rest on, measured again on the real samples."""

import gzip

import numpy as np
import pytest

from workloads.streams.tracks import Drift, FlashCrowd, Growth, Recency


@pytest.fixture(scope="module")
def avazu(samples):
    """Hours of one day and ids of two columns, coded from 0."""
    with gzip.open(samples / "avazu_sample.csv.gz", "rt") as lines:
        header = next(lines).rstrip("\n").split(",")
        columns = dict(zip(header, zip(*(line.rstrip("\n").split(",") for line in lines), strict=True), strict=True))
    hours = np.array([int(hour[6:]) for hour in columns["hour"]])
    assert len({hour[:6] for hour in columns["hour"]}) == 1
    full = hours < 20  # the last hour has few rows
    ids = {name: coded(columns[name])[full] for name in ("C14", "C17", "site_id", "device_model")}
    return hours[full], ids


def coded(column):
    return np.unique(np.array(column), return_inverse=True)[1]


def covered(hours, ids, *, top, lag, rows=200):
    """Share of an hour's lookups that the top ids have, of rows of the hour that is `lag` hours before."""
    draw, shares = np.random.default_rng(0), []
    for hour in range(20 - lag):
        for _ in range(5):
            first, second = (draw.permutation(ids[hours == one]) for one in (hour, hour + lag))
            if lag == 0:
                first = second = draw.permutation(ids[hours == hour])
            values, counts = np.unique(first[:rows], return_counts=True)
            shares.append(np.isin(second[-rows:], values[np.argsort(-counts, kind="stable")[:top]]).mean())
    return np.mean(shares)


def test_ads_of_avazu_lose_their_place_within_a_day_and_sites_do_not(avazu):
    hours, ids = avazu
    kept = [covered(hours, ids["C14"], top=30, lag=lag) for lag in (0, 8, 16)]
    np.testing.assert_allclose(kept, [0.62, 0.33, 0.17], atol=0.03)
    # The hour at which the straight line through both lags ends, in days; Avazu has ten.
    days = 16 / (1 - kept[2] / kept[0]) / 24
    assert days / 10 == pytest.approx(Drift().lifetime, rel=0.2)
    for name in ("site_id", "device_model"):
        assert covered(hours, ids[name], top=20, lag=16) > 0.9 * covered(hours, ids[name], top=20, lag=0)


def test_rare_campaigns_of_avazu_rise_to_the_peak_of_a_crowd_within_an_hour(avazu):
    hours, ids = avazu

    def rises(name):
        """By hour, the largest share of an id that had less than 0.2 % before."""
        found = []
        for hour in range(3, 20):
            size = ids[name].max() + 1
            before = np.bincount(ids[name][hours < hour], minlength=size) / (hours < hour).sum()
            now = np.bincount(ids[name][hours == hour], minlength=size) / (hours == hour).sum()
            found.append(now[before < 0.002].max())
        return np.array(found)

    assert rises("C17").max() == pytest.approx(FlashCrowd().peak, abs=0.02)
    assert (rises("C14") >= 0.03).sum() == 5
    assert rises("C14").max() == pytest.approx(0.075, abs=0.005)


def new_share(ids):
    """Share of the second half's lookups that go to ids which the first half does not have."""
    half = ids.size // 2
    return 1 - np.isin(ids[half:], ids[:half]).mean()


def test_half_a_day_of_avazu_has_as_many_new_ads_as_the_second_half_of_a_growing_stream(avazu):
    hours, ids = avazu
    draw = np.random.default_rng(0)
    assert np.all(np.diff(hours) >= 0)
    assert new_share(ids["C14"]) == pytest.approx(0.125, abs=0.01)
    assert new_share(draw.permutation(ids["C14"])) == pytest.approx(0.013, abs=0.004)
    existing = np.linspace((1 + Growth().start) / 2, 1, 1001)
    assert new_share(ids["C14"]) == pytest.approx((1 - existing[0] / existing).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("file", "column", "distance", "excess"),
    [("criteo_kaggle_sample.tsv.gz", 3, 512, 0.005), ("criteo_1tb_sample.tsv.gz", 1, 4096, 0.019)],
)
def test_rare_ids_of_criteo_come_back_sooner_than_shuffled_rows_have_them(samples, file, column, distance, excess):
    with gzip.open(samples / file, "rt") as lines:
        ids = coded([line.split("\t")[13 + column] for line in lines])
    counts = np.bincount(ids)

    def reused(ids):
        order = np.argsort(ids, kind="stable")
        again = ids[order][1:] == ids[order][:-1]
        near = np.diff(order)[again] <= distance
        return (near & (counts[ids[order][1:][again]] <= 8)).sum()

    draw = np.random.default_rng(0)
    by_chance = np.mean([reused(draw.permutation(ids)) for _ in range(10)])
    found = (reused(ids) - by_chance) / counts[counts <= 8].sum()
    assert found == pytest.approx(excess, abs=0.002)
    # A log that keeps every third sample would show less than a third of the track's copies, and no less than is seen.
    track = Recency()
    assert found <= track.probability * (np.log2(3 * distance) / track.octaves) / 3
