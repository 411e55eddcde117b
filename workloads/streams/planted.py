"""Samples of a synthetic stream, and the model behind their labels: a calibrated logistic regression."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from workloads.streams.draws import Floats, Ints, Singles, Words, sum_effects

_DENSE_SHARE = 0.2
_SQUARE_SHARE = 0.3
_HALF_EFFECT_RANK = 256.0
_LEAST_DEVIATION = 0.5
_SCALE_RANGE = (1e-2, 1e2)
_STEPS = 30


@dataclass(frozen=True)
class Samples:
    """One draw of `n` samples.

    Attributes:
        ranks: By table, then sample, then place in the bag, int64 `[sum of lengths]`.
        lengths: Ids per bag, int64 `[tables, n]`.
        offsets: Where every bag's ranks begin, and their number, int64 `[tables * n + 1]`.
        dense: fp32 `[dense columns, n]`.
        thresholds: A sample is clicked where its probability is above, float64 `[n]`.
    """

    ranks: Ints
    lengths: Ints
    offsets: Ints
    dense: Singles
    thresholds: Floats

    @property
    def starts(self) -> Ints:
        """The place at which each table's ranks begin, and their number, int64 `[tables + 1]`."""
        return self.offsets[:: self.thresholds.size].copy()


@dataclass(frozen=True, kw_only=True)
class PlantedModel:
    """Click probabilities of samples, from their ranks and dense features.

    The logit is `intercept + scale * (ids + dense)`. An id's effect is uniform, drawn by a hash of its table's key and
    its rank, and shrinks as 1 / (1 + rank / 256): thousands of rows matter, and what matters most is seen often enough
    to be learnt. The dense part is linear in the standardised features plus the square of the first. A feature that
    hardly varies (Avazu's C15: 0.06 around 5.8) is divided by 0.5 instead of its deviation: a network would not find an
    effect that depends on its third digit.

    Attributes:
        keys: One random word per table, uint64 `[tables]`.
        means, deviations, weights: Of the dense features, `[dense columns]`; deviations are 0.5 at least, and weights
            apply to standardised features.
        square: Weight of the square of the first standardised feature.
        id_mean, id_scale: Centre and factor of the summed id effects.
        intercept, scale: Set by `calibrated`.
        best_auroc: AUROC of the model's own probabilities on labels drawn from them.
    """

    keys: Words
    means: Floats
    deviations: Floats
    weights: Floats
    square: float
    id_mean: float
    id_scale: float
    intercept: float = 0.0
    scale: float = 1.0
    best_auroc: float = 0.5

    @classmethod
    def calibrated(
        cls,
        samples: Samples,
        *,
        generator: np.random.Philox,
        ctr: float,
        auroc: float,
    ) -> Self:
        """Draw a model and set its intercept and scale on a stream of its own.

        Args:
            samples: The calibration stream.
            generator: Source of keys and weights.
            ctr: Mean click probability to meet.
            auroc: AUROC to meet.
        """
        dense = samples.dense
        keys = generator.random_raw((len(samples.lengths),))
        raw = generator.random_raw((len(dense),))
        # Either sign, none near 0: every column matters a little.
        weights = np.where(raw & np.uint64(1), 1.0, -1.0) * (0.5 + (raw >> np.uint64(11)) * 2.0**-53)
        weights *= np.sqrt(_DENSE_SHARE * (1.0 - _SQUARE_SHARE) / (weights**2).sum())
        effects = _id_effects(samples, keys)
        model = cls(
            keys=keys,
            means=dense.mean(axis=1, dtype=np.float64),
            deviations=np.maximum(dense.std(axis=1, dtype=np.float64), _LEAST_DEVIATION),
            weights=weights,
            square=float(np.sqrt(_DENSE_SHARE * _SQUARE_SHARE / 2.0)),
            id_mean=float(effects.mean()),
            id_scale=float(np.sqrt(1.0 - _DENSE_SHARE) / max(effects.std(), 1e-9)),
        )
        return model._fitted(np.sort(model._scores(samples)), ctr=ctr, auroc=auroc)

    def probabilities(self, samples: Samples) -> Floats:
        """True click probabilities, float64 `[n]`."""
        return _sigmoid(self.intercept + self.scale * self._scores(samples))

    def _scores(self, samples: Samples) -> Floats:
        """Logits before calibration, variance near 1, float64 `[n]`."""
        scores = (_id_effects(samples, self.keys) - self.id_mean) * self.id_scale
        # Column by column: a matrix product may add in another order on another machine, and a label may then flip.
        for column, weight in enumerate(self.weights):
            standard = (samples.dense[column] - self.means[column]) / self.deviations[column]
            scores += standard * weight
            if column == 0:
                scores += (standard * standard - 1.0) * self.square
        return scores

    def _fitted(self, scores: Floats, *, ctr: float, auroc: float) -> Self:
        """Bisect the scale, with the intercept that meets the CTR at each; `scores` ascend."""
        low, high = np.log(_SCALE_RANGE)
        intercept = scale = reached = 0.0
        for _ in range(_STEPS):
            scale = float(np.exp((low + high) / 2.0))
            intercept = _intercept(scores * scale, ctr=ctr)
            reached = expected_auroc(_sigmoid(scores * scale + intercept))
            low, high = (np.log(scale), high) if reached < auroc else (low, np.log(scale))
        return replace(self, intercept=intercept, scale=scale, best_auroc=reached)


def expected_auroc(ascending: Floats) -> float:
    """AUROC of click probabilities on labels drawn from them, without the noise of a draw.

    Every pair of samples counts with the probability that the higher is clicked and the lower is not.

    Args:
        ascending: Click probabilities, float64 `[n]`, ascending.
    """
    misses = 1.0 - ascending
    below = np.cumsum(misses) - misses / 2.0
    return float((ascending * below).sum() / (ascending.sum() * misses.sum()))


def _intercept(logits: Floats, *, ctr: float) -> float:
    """The number to add to logits for a mean probability of `ctr`, by bisection."""
    low, high = -20.0 - float(logits.max()), 20.0 - float(logits.min())
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        low, high = (middle, high) if _sigmoid(logits + middle).mean() < ctr else (low, middle)
    return (low + high) / 2.0


def _id_effects(samples: Samples, keys: Words) -> Floats:
    """Summed effects of each sample's ids, float64 `[n]`, each in (-1, 1) before its rank shrinks it.

    For a bag it is the mean, so that the scale of the logit does not depend on lengths; an empty bag has no effect.
    """
    total = np.zeros(samples.thresholds.size)
    sum_effects(samples.ranks, samples.offsets, keys, _HALF_EFFECT_RANK, total)
    return total


def _sigmoid(logits: Floats) -> Floats:
    probabilities: Floats = 1.0 / (1.0 + np.exp(-logits))
    return probabilities
