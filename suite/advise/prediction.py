"""Predicting a step: named costs, each times what the step counts."""

from suite.advise.calibrate.calibrate import Calibration
from suite.advise.case import Case, Weighed
from suite.advise.costs import Basis, Counts
from suite.advise.described import DescribedCosts

Costs = Calibration | DescribedCosts
"""What a step costs on some machine: measured on this one, or modelled of another."""


class Prediction(Weighed):
    """A predicted case."""

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

    def fits(self, budget: int | None) -> bool:
        """Whether it is within so many bytes of the device, the model included; None: whatever it takes."""
        return budget is None or self.device_bytes <= budget


def predict(case: Case, counts: Counts, costs: Costs) -> Prediction:
    """Predict a case from what its step counts and what the machine asks for that.

    Raises:
        NotCalibrated: the costs do not cover the case.
    """
    exposed_s, hidden_s = (
        {name: seconds for name, seconds in some.items() if seconds > 0} for some in costs.terms(case, counts)
    )
    step_s = sum(exposed_s.values())
    return Prediction(
        system=case.system,
        row_type=case.row_type,
        cache_ratio=case.slots / case.spec.rows if case.caches else None,
        slots=case.slots,
        step_s=step_s,
        samples_per_s=case.shape.batch_size / step_s,
        terms_s=exposed_s,
        hidden_s=hidden_s,
        device_bytes=sum(case.device_bytes.values()),
        device_bytes_by_purpose=case.device_bytes,
        counts=counts,
        basis=costs.basis,
    )
