"""The track keeps its promise on generated ids, and the plain stream does not."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import STREAMS, SyntheticWorkload
from workloads.streams.tracks import Drift, Table
from workloads.streams.zipf import RankLaw

BATCH = 4096
SHORT = 49 * BATCH
"""Samples of a training split that a test can draw completely."""
SHORT_DRIFT = Drift(lifetime=0.15, takers=5)
LAW = RankLaw(rows=100_000, head=(0.1, 0.05), exponent=1.05, shift=3.0)


@functools.cache
def kaggle(track=None, *, samples=None, batch_size=BATCH, max_rows=30_000, seed=5):
    """Criteo Kaggle on smaller tables, and a shorter training split if told so."""
    schema = SCHEMAS["criteo_kaggle"]
    rows = dict(SyntheticWorkload.create("criteo_kaggle", batch_size=1, seed=0, max_rows=max_rows).tables)
    if samples is not None:
        schema = replace(schema, train_rows=samples)
    return SyntheticWorkload(schema=schema, rows=rows, batch_size=batch_size, seed=seed, track=track)


def ids_of(workload, indices, split=Split.TRAIN):
    """Row ids of consecutive batches, one after the other, `[tables, samples]`."""
    parts = [workload.batch(i, split).features.values().view(len(workload.tables), -1) for i in indices]
    return torch.cat(parts, dim=1).numpy()


def number_of(workload, table):
    return list(dict(workload.tables)).index(table)


def ids_by_popularity(workload, table, ranks):
    """Row ids of identities."""
    return workload._scrambler.table_ids(number_of(workload, table), np.asarray(ranks, dtype=np.int64))


def one_table(*, rows, pinned=0):
    return Table(LAW.resized(rows), pinned, np.random.Philox(1).random_raw(1)[0], 10**6)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [1.0, 0.3])
def test_frequencies_are_what_the_stream_draws_and_without_the_track_they_would_be_wrong(prefix):
    workload = kaggle(SHORT_DRIFT, samples=SHORT)
    samples = round(prefix * SHORT)
    drawn = ids_of(workload, range(-(-samples // BATCH)))[:, :samples]
    for (name, frequencies), ids, (_, rows) in zip(
        workload.frequencies(prefix).items(), drawn, workload.tables, strict=True
    ):
        assert (frequencies.dtype, frequencies.shape) == (torch.int64, (rows,))
        expected = frequencies.numpy().astype(float)
        counted = np.bincount(ids, minlength=rows)
        assert expected.sum() == pytest.approx(samples, rel=2e-2), "drawn row by row"
        known = expected + counted > 100
        standard = (counted - expected)[known] / np.sqrt((counted + expected)[known])  # both are drawn
        assert np.abs(standard).max() < 6.0, name
        assert (standard**2).mean() < 1.0 + 6.0 * np.sqrt(2.0 / known.sum()), name
        if name == "C16":
            plain = kaggle(samples=SHORT).frequencies(prefix)[name].numpy().astype(float)
            assert np.abs((counted - plain) / np.sqrt(plain + 1)).max() > 20


def test_small_tables_and_missing_values_know_no_track():
    plain, tracked = kaggle(samples=SHORT), kaggle(SHORT_DRIFT, samples=SHORT)
    first, second = ids_of(plain, [24]), ids_of(tracked, [24])
    same = {name: np.array_equal(*pair) for name, *pair in zip(dict(plain.tables), first, second, strict=True)}
    published = dict(SCHEMAS["criteo_kaggle"].categorical)
    assert all(same[name] for name in same if published[name] < 1000)
    assert not all(same[name] for name in same if published[name] >= 1000)
    absent = [second[number_of(plain, name)] == ids_by_popularity(plain, name, [0])[0] for name in ("C12", "C16")]
    # An id that stands for a missing value is drawn only as such in these tables.
    assert np.array_equal(*absent)
    assert absent[0].mean() == pytest.approx(0.0331, abs=0.015)


@pytest.mark.parametrize("track", [None, SHORT_DRIFT])
def test_labels_depend_on_ids_alone_whatever_the_time(track):
    workload = kaggle(track, samples=SHORT)
    identities = [np.argsort(ids_by_popularity(workload, name, np.arange(rows))) for name, rows in workload.tables]
    for index, split in ((48, Split.TRAIN), (700, Split.TEST)):
        batch = workload.batch(index, split)
        ids = batch.features.values().view(len(workload.tables), -1).numpy()
        ranks = np.stack([table[found] for table, found in zip(identities, ids, strict=True)])
        samples = workload.draw(STREAMS[split], index, workload.batch_size)
        expected = workload._planted.probabilities(replace(samples, ranks=ranks.reshape(-1)))
        np.testing.assert_allclose(workload._planted.probabilities(samples), expected, rtol=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 300), takers=st.integers(2, 20), pinned=st.integers(0, 1), sample=st.integers(0, 10**7),
    lifetime=st.sampled_from([0.001, 0.3, 2.0]),
)  # fmt: skip
def test_drift_permutes_the_ids_at_every_instant(rows, takers, pinned, sample, lifetime):
    track, table = Drift(lifetime=lifetime, takers=takers), one_table(rows=rows, pinned=pinned)
    ids = np.arange(rows, dtype=np.int64)
    track.identify(table, ids, np.full(rows, sample))
    assert np.array_equal(np.sort(ids), np.arange(rows))
    assert pinned == 0 or ids[0] == 0


def test_drift_replaces_top_ids_in_a_straight_line():
    track, table = Drift(lifetime=0.1, takers=16), one_table(rows=100_000)
    top = np.arange(5000, dtype=np.int64)

    def at(sample):
        ids = top.copy()
        track.identify(table, ids, np.full(top.size, sample))
        return ids

    for distance in (0, 20_000, 50_000, 80_000, 100_000, 700_000, 1_400_000):
        kept = np.isin(at(123_456 + distance), at(123_456)).mean()
        assert kept == pytest.approx(max(0.0, 1 - distance / 100_000), abs=0.03)


def kept_lookups(workload, window, others):
    """Share of lookups that the most frequent ids of a window still have in others, relative to the window itself.

    Of tables with many ids, whose missing value is no popular id.
    """
    tables = [number_of(workload, name) for name in ("C3", "C4", "C12", "C16", "C21")]
    here, shares = ids_of(workload, *window), []
    for other in (window, *others):
        there = ids_of(workload, *other)
        found = []
        for table in tables:
            values, counts = np.unique(here[table], return_counts=True)
            missing = ids_by_popularity(workload, workload.tables[table][0], [0])
            top = np.setdiff1d(values[np.argsort(counts)[-100:]], missing)
            found.append(np.isin(there[table], top).mean())
        shares.append(np.mean(found))
    return np.array(shares[1:]) / shares[0]


def test_time_goes_on_from_training_to_validation_to_test():
    schema = SCHEMAS["criteo_kaggle"]
    workload = kaggle(Drift(lifetime=0.2), max_rows=None)
    last = workload.batches(Split.TRAIN)
    others = [(range(4), split) for split in (Split.VALIDATION, Split.TEST, Split.TRAIN)]
    validation, test, first = kept_lookups(workload, (range(last - 4, last), Split.TRAIN), others)
    assert validation > 0.85
    assert test == pytest.approx(1 - schema.validation_rows / (0.2 * schema.train_rows), abs=0.15)
    assert first < 0.1
