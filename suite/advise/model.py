"""Predicting a step: named costs, each times what the step counts."""

from __future__ import annotations

from typing import Literal, Protocol

from suite.advise.calibrate.calibration import Calibration, RowType, labelled
from suite.advise.case import Case
from suite.advise.costs import Counts
from suite.records.model import Model


class NotCalibrated(LookupError):
    """No cost is known for a case; the message says which, and why."""


Basis = Literal["calibrated", "modelled"]
"""Whether costs were measured on this machine, or follow from the description of another."""


class Terms(Model):
    """Seconds of a step by name. What is `exposed` adds up to the step; what is `hidden` goes on beside it."""

    exposed_s: dict[str, float]
    hidden_s: dict[str, float] = {}


class Costs(Protocol):
    """What a step costs on some machine."""

    @property
    def basis(self) -> Basis:
        """Where they come from."""

    def terms(self, case: Case, counts: Counts) -> Terms:
        """The named costs of a step.

        Raises:
            NotCalibrated: they are not known.
        """


class Prediction(Model):
    """A predicted case."""

    system: str
    row_type: RowType
    cache_ratio: float | None = None
    """Cached rows as a share of all; None: there is no cache."""
    slots: int
    step_s: float
    samples_per_s: float
    terms_s: dict[str, float]
    """Exposed time by term: they add up to the step."""
    hidden_s: dict[str, float]
    """Time beside training, by term."""
    device_bytes: int
    device_bytes_by_purpose: dict[str, int]
    counts: Counts
    basis: Basis

    @property
    def hit_rate(self) -> float | None:
        """1 - unique misses / unique ids; None without a cache."""
        return None if self.cache_ratio is None else 1 - self.counts.misses / max(self.counts.distinct, 1.0)

    @property
    def overflows(self) -> bool:
        """Whether some batch has more distinct rows than the cache has slots."""
        return self.counts.overflow_share > 0

    @property
    def label(self) -> str:
        """The variant for people."""
        return labelled(self.system, self.row_type)


def predict(case: Case, counts: Counts, costs: Costs) -> Prediction:
    """Predict a case from what its step counts and what the machine asks for that.

    Raises:
        NotCalibrated: the costs do not cover the case.
    """
    terms = costs.terms(case, counts)
    step_s = sum(terms.exposed_s.values())
    return Prediction(
        system=case.system,
        row_type=case.row_type,
        cache_ratio=case.slots / case.spec.rows if case.caches else None,
        slots=case.slots,
        step_s=step_s,
        samples_per_s=case.shape.batch_size / step_s,
        terms_s=terms.exposed_s,
        hidden_s=terms.hidden_s,
        device_bytes=case.total_device_bytes,
        device_bytes_by_purpose=case.device_bytes,
        counts=counts,
        basis=costs.basis,
    )


class CalibratedCosts:
    """The costs that were measured of this machine. See `suite.advise.calibrate.calibration.KernelCosts`.

    - dense: forward, backward and optimizer of the MLPs and the interaction, the very shape, measured;
    - calls: what looking up and updating cost whatever the ids: features are cut, kernels called, tables gone through;
    - lookup, update: the same per id and per distinct row;
    - planning: finding distinct rows and misses and choosing victims, on the training thread; with a look-ahead what
      training loses to the thread that plans, the rest of which is hidden;
    - moving: rows into the cache and out of it.
    """

    basis: Basis = "calibrated"

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def terms(self, case: Case, counts: Counts) -> Terms:
        """As `Costs.terms`."""
        shape = self._calibration.of(case.shape)
        if shape is None:
            raise NotCalibrated(
                f"steps of {case.shape.tables} tables and {case.shape.batch_size:,} samples were not calibrated"
            )
        costs = shape.of(case.kernel)
        if costs is None:
            why = shape.refused.get(str(case.kernel), "it was not asked for")
            raise NotCalibrated(f"{case.kernel} was not calibrated: {why}")
        slowed_s = costs.slowed.seconds(counts)
        exposed = {
            "dense": costs.dense_s,
            "calls": costs.lookup.fixed_s + costs.update.fixed_s,
            "lookup": costs.lookup.varying_s(counts),
            "update": costs.update.varying_s(counts),
            "planning": costs.planning.seconds(counts) + slowed_s,
            "moving": costs.moving.seconds(counts),
        }
        hidden = {"planning": max(0.0, costs.beside.seconds(counts) - slowed_s)}
        return Terms(exposed_s=positive(exposed), hidden_s=positive(hidden))


def positive(seconds: dict[str, float]) -> dict[str, float]:
    """The terms that cost something."""
    return {name: value for name, value in seconds.items() if value > 0}
