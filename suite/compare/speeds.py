"""How a cell's speed beside its own baseline changed from one run to the other, and whether that is more than noise."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from suite.compare.matching import Pair
from suite.records.groups import is_baseline
from suite.tables.statistics import Estimate, log_speeds, unpaired_ratio

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""


class Unjudged(enum.Enum):
    """Why a change of speed cannot be told from noise: what is the matter, and what to do."""

    NOT_MEASURED = ("not timed in both runs", "run systems that end ok in both, and not with another one's kernel")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_BASELINE = ("the baseline itself", "add the systems in question to both runs")
    NO_BASELINE = ("no baseline beside it, in one run at least", "run full_gpu with it, under the same options")
    ANOTHER_MACHINE = ("measured on two machines", "measure both runs on one machine")
    NO_INTERVAL = ("a single build: no interval", "run both with --rounds 3 or more")

    @property
    def reason(self) -> str:
        """What is the matter."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do."""
        return self.value[1]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A cell's speed relative to the baseline that took turns with it, in both runs.

    Attributes:
        before, after: The ratios. None: not timed, or no baseline beside it.
        builds: That they rest on, in each run.
        ratio: after / before. None: there is nothing to compare.
        unjudged: Why the ratio decides nothing. None: it does.
    """

    before: float | None
    after: float | None
    builds: tuple[int, int]
    ratio: Estimate | None
    unjudged: Unjudged | None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes 1."""
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return False
        return self.ratio.high < 1 - _ROUNDING or self.ratio.low > 1 + _ROUNDING

    @property
    def slower(self) -> bool:
        """Whether RUN_B is slower beyond noise."""
        return self.beyond_noise and self.ratio is not None and self.ratio.value < 1

    def shows(self, loss: float) -> bool:
        """Whether a loss of this share of speed would lie beyond noise, given the width of the interval."""
        if self.ratio is None or self.ratio.high is None:
            return False
        return self.ratio.high / self.ratio.value * (1 - loss) < 1


def compare_speeds(pair: Pair) -> Speed:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.
    """
    before, after = (side.row for side in pair)
    unjudged = _not_comparable(pair)
    ratio = None
    if unjudged is None:
        ratio = unpaired_ratio(*(log_speeds(side.records).values() for side in (pair.after, pair.before)))
        if ratio.low is None:
            unjudged = Unjudged.NO_INTERVAL
        elif pair.another_machine:
            unjudged = Unjudged.ANOTHER_MACHINE
    return Speed(
        before=before.ratio, after=after.ratio, builds=(before.builds, after.builds), ratio=ratio, unjudged=unjudged
    )


def _not_comparable(pair: Pair) -> Unjudged | None:
    rows = [side.row for side in pair]
    checks = (
        (any(row.steps_per_s is None for row in rows), Unjudged.NOT_MEASURED),
        (_shares_records(pair), Unjudged.SAME_RECORDS),
        (is_baseline(pair.before.cell.system), Unjudged.IS_THE_BASELINE),
        (any(row.ratio is None for row in rows), Unjudged.NO_BASELINE),
    )
    return next((reason for holds, reason in checks if holds), None)


def _shares_records(pair: Pair) -> bool:
    ours, theirs = ({(record.key, record.started_at) for record in side.records} for side in pair)
    return bool(ours & theirs)
