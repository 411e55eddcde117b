import numpy as np
import pytest

from workloads.streams.planted import PlantedModel
from workloads.streams.samples import Samples


def samples_of(ranks, dense):
    """Samples with one id per table."""
    return Samples(
        ranks=ranks.reshape(-1),
        lengths=np.ones_like(ranks),
        offsets=np.arange(ranks.size + 1),
        dense=dense,
        thresholds=np.zeros(dense.shape[1]),
    )


@pytest.fixture(scope="module")
def stream():
    generator = np.random.default_rng(3)
    ranks = np.minimum(generator.zipf(1.3, (8, 40_000)) - 1, 9999).astype(np.int64)
    return ranks, generator.normal(2.0, 1.5, (4, 40_000)).astype(np.float32)


def calibrated(stream, *, ctr=0.2, auroc=0.8, seed=1):
    return PlantedModel.calibrated(samples_of(*stream), generator=np.random.Philox(key=seed), ctr=ctr, auroc=auroc)


def test_rare_ranks_matter_less(stream):
    model = calibrated(stream)
    _, dense = stream
    spreads = []
    for low in (0, 9000):
        ranks = np.random.default_rng(4).integers(low, low + 10, (8, 5000))
        probabilities = model.probabilities(samples_of(ranks, np.repeat(dense[:, :1], 5000, axis=1)))
        spreads.append(np.log(probabilities / (1 - probabilities)).std())
    assert spreads[0] > 10 * spreads[1]


def test_dense_features_alone_rank_far_worse_than_the_ids(stream):
    ranks, dense = stream
    model = calibrated(stream)
    probabilities = model.probabilities(samples_of(ranks, dense))
    labels = np.random.default_rng(5).random(probabilities.size) < probabilities
    without_ids = model.probabilities(samples_of(np.zeros_like(ranks), dense))
    order = np.argsort(without_ids)
    below = np.cumsum(~labels[order])
    auroc = below[labels[order]].sum() / (labels.sum() * (~labels).sum())
    assert 0.58 < auroc < 0.70
