"""Recency keeps its promise on generated ids, and the plain stream does not."""

import numpy as np
import pytest
import torch
from temporal_scenes import ids_of, kaggle, number_of, one_table

from workloads.streams.tracks import Recency


def reuses(ids, rare, distance):
    """Lookups of rare ids that the sample `distance` before has too."""
    return int(((ids[distance:] == ids[:-distance]) & rare[ids[distance:]]).sum())


def test_recency_reuses_rare_ids_at_short_distances_as_often_as_it_says():
    track = Recency(probability=0.2, octaves=10)
    batches = range(24, 32)
    found = {}
    for name, workload in (("recency", kaggle(track)), ("plain", kaggle())):
        ids, reused, lookups = ids_of(workload, batches), 0, 0
        for table in ("C7", "C13", "C15"):  # never missing, no heavy hitters
            number = number_of(workload, table)
            frequencies = workload.frequencies()[table].numpy()
            rare = frequencies < 1e-3 * frequencies.sum()
            reused += sum(reuses(ids[number], rare, distance) for distance in range(1, 8))
            lookups += int(rare[ids[number]].sum())
        found[name] = reused / lookups
        spread = np.sqrt(reused) / lookups
    # Distances of 1 to 7 are three of ten octaves.
    copied = 0.2 * 3 / 10
    assert found["recency"] - found["plain"] == pytest.approx(copied, abs=6 * spread + 0.1 * copied)
    assert found["plain"] < 0.25 * copied


def test_recency_copies_from_octaves_of_equal_weight():
    track, table = Recency(probability=0.15, octaves=8), one_table()
    samples = np.arange(1000, 301_000, dtype=np.int64)
    uniform = np.empty(samples.size)
    track.redraw(table, uniform, samples)
    _, first, inverse, counts = np.unique(uniform, return_index=True, return_inverse=True, return_counts=True)
    # A number seen twice was copied once, from the first sample to the second.
    twice = np.flatnonzero(counts[inverse] == 2)
    second = twice[first[inverse[twice]] != twice]
    distances = second - first[inverse[second]]
    octaves = np.bincount(np.log2(distances).astype(int), minlength=8)[:8]
    assert distances.max() < 2**9, "two copies of one number that was drawn before, at most"
    np.testing.assert_allclose(octaves / octaves.sum(), 1 / 8, atol=0.02)
    assert 1 - counts.size / samples.size == pytest.approx(0.15, abs=0.01)


def test_recency_leaves_frequencies_as_they_are_and_depends_on_no_batch_size():
    plain, track = kaggle(), kaggle(Recency())
    assert all(
        torch.equal(one, two) for one, two in zip(*(w.frequencies().values() for w in (plain, track)), strict=True)
    )
    small = kaggle(Recency(), batch_size=512)
    for table in ("C7", "C10", "C15"):  # never missing: nothing but the track's own draws
        number = number_of(track, table)
        assert np.array_equal(ids_of(small, range(80, 88))[number], ids_of(track, [10])[number])
