"""The machine that a prediction is for, and where its costs come from: measured here, or described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.advise.calibrate.calibrate import OnProgress, calibrate
from suite.advise.case import Case
from suite.advise.described import DescribedCosts
from suite.advise.hardware import Hardware, Matmul
from suite.advise.model import CalibratedCosts, Costs


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What costs are taken from.

    Attributes:
        described: A described machine; None: this one.
        matmul: In which precision a described machine multiplies.
        seconds: How long to calibrate this one.
    """

    described: Hardware | None
    matmul: Matmul
    seconds: float

    def costs(self, cases: Sequence[Case], on_progress: OnProgress) -> tuple[Costs, str]:
        """Costs that cover the cases, and the machine's name.

        Raises:
            CalibrationFailed: this machine could not be measured.
        """
        if self.described is not None:
            return DescribedCosts(self.described, matmul=self.matmul), self.described.name
        made = calibrate(
            list(dict.fromkeys(case.shape for case in cases)),
            list(dict.fromkeys(case.kernel for case in cases)),
            seconds=self.seconds,
            on_progress=lambda what, done, total: on_progress(f"calibrating: {what}", done, total),
        )
        return CalibratedCosts(made), made.gpu or made.cpu
