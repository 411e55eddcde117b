"""Whether a cell became slower or faster, told from its speed beside the baseline's in both runs."""

import enum
from dataclasses import dataclass

from suite.compare.runs import Pair
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

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy


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
    unjudged, ratio = _not_comparable(pair), None
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
    ours, theirs = ({(record.key, record.started_at) for record in side.records} for side in pair)
    if any(row.steps_per_s is None for row in rows):
        return Unjudged.NOT_MEASURED
    if ours & theirs:
        return Unjudged.SAME_RECORDS
    if is_baseline(pair.before.cell.system):
        return Unjudged.IS_THE_BASELINE
    return Unjudged.NO_BASELINE if any(row.ratio is None for row in rows) else None
