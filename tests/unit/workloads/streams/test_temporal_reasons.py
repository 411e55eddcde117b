"""What the defaults of the tracks rest on, measured again on the real samples."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from workloads.streams.tracks import Drift


@pytest.fixture(scope="module")
def avazu(samples):
    """Hours of one day and ids of two columns, coded from 0."""
    with gzip.open(samples / "avazu_sample.csv.gz", "rt") as lines:
        header = next(lines).rstrip("\n").split(",")
        columns = dict(zip(header, zip(*(line.rstrip("\n").split(",") for line in lines), strict=True), strict=True))
    hours = np.array([int(hour[6:]) for hour in columns["hour"]])
    assert len({hour[:6] for hour in columns["hour"]}) == 1
    full = hours < 20  # the last hour has few rows
    ids = {name: coded(columns[name])[full] for name in ("C14", "site_id", "device_model")}
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
    said = "{:.0f} % of its lookups, {:.0f} % eight hours later and {:.0f} % sixteen hours later".format(
        *(100 * k for k in kept)
    )
    assert said in (Path(__file__).parents[4] / "docs" / "synthetic.md").read_text()
    # The hour at which the straight line through both lags ends, in days; Avazu has ten.
    days = 16 / (1 - kept[2] / kept[0]) / 24
    assert days / 10 == pytest.approx(Drift().lifetime, rel=0.2)
    for name in ("site_id", "device_model"):
        assert covered(hours, ids[name], top=20, lag=16) > 0.9 * covered(hours, ids[name], top=20, lag=0)
