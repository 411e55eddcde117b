"""What was verified of a cell: checks, each of a difference and what is allowed of it."""

import math
import sys
from typing import Self

from suite.records.measured import Model


class Check(Model):
    """One verification: what was compared and how far apart the two sides were."""

    name: str
    passed: bool
    max_difference: float
    tolerance: float
    """0 demands bitwise equality."""
    detail: str = ""

    @classmethod
    def of(cls, name: str, difference: float, allowed: float, *, detail: str = "") -> Self:
        """Check that a difference, which may be NaN or infinite, is at most `allowed`; `detail` is of a failure."""
        # a NaN must fail, and JSON has neither NaN nor infinity
        shown = sys.float_info.max if math.isnan(difference) else min(difference, sys.float_info.max)
        passed = shown <= allowed
        said = "" if passed else detail or f"differs by {difference:.3g}, allowed {allowed:.3g}"
        return cls(name=name, passed=passed, max_difference=shown, tolerance=allowed, detail=said)


class Verification(Model):
    """All checks of a cell. A cell is verified when every one passed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether there was something to check and all of it held."""
        return bool(self.checks) and all(check.passed for check in self.checks)
