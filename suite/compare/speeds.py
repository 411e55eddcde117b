"""How a cell's throughput changed from one run to the other, and whether that is more than noise."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from suite.compare.matching import Pair
from suite.compare.runs import Side, trusted_speeds
from suite.tables.statistics import Estimate, unpaired_ratio

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where rounds do not differ at all."""


class Unjudged(enum.Enum):
    """Why a change of speed cannot be told from noise: what is the matter, and what to do."""

    NOT_MEASURED = ("not measured in both runs", "run cells that end ok in both")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_MEASURE = ("the system that the others are divided by", "add the systems in question to both runs")
    NO_MEASURE = (
        "no round shared with the system to divide by, in one run at least",
        "run the system of --normalize-by under the same options and in the same rounds",
    )
    ANOTHER_MACHINE = (
        "measured on two machines",
        "give --normalize-by full_gpu, or measure both runs on one machine",
    )
    ONE_ROUND = ("one round: no interval", "run both with --rounds 3 or more")

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
    """Throughput of a cell in both runs.

    Attributes:
        before, after: Geometric means over rounds, in samples per second, or relative to another system's. None: not
            measured.
        rounds: Rounds that they come from, in each run.
        ratio: after / before. None: there is nothing to compare.
        unjudged: Why the ratio decides nothing. None: it does.
    """

    before: float | None
    after: float | None
    rounds: tuple[int, int]
    ratio: Estimate | None
    unjudged: Unjudged | None

    @property
    def without_interval(self) -> bool:
        """Whether one of the runs has a single round."""
        return self.ratio is not None and self.ratio.low is None

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


def compare_speeds(pair: Pair, *, normalize_by: str | None = None) -> Speed:
    """Compare a cell's throughput.

    Rounds of two runs were not interleaved with each other, so they are not paired: Welch's interval on the logarithms.
    With `normalize_by` every round's throughput is first divided by that system's in the same run and round, which
    cancels whatever slowed both.
    """
    if normalize_by is None:
        before, after = pair.before.speeds, pair.after.speeds
    else:
        before, after = (_normalized(side, normalize_by) for side in pair)
    measured = all(side.speeds for side in pair)
    comparable = bool(before and after) and not _shares_records(pair) and pair.before.cell.system != normalize_by
    ratio = unpaired_ratio(after, before) if comparable else None
    return Speed(
        before=_mean(before),
        after=_mean(after),
        rounds=(len(before), len(after)),
        ratio=ratio,
        unjudged=_unjudged(pair, ratio, measured=measured, normalize_by=normalize_by),
    )


def _unjudged(pair: Pair, ratio: Estimate | None, *, measured: bool, normalize_by: str | None) -> Unjudged | None:
    checks = (
        (not measured, Unjudged.NOT_MEASURED),
        (_shares_records(pair), Unjudged.SAME_RECORDS),
        (pair.before.cell.system == normalize_by, Unjudged.IS_THE_MEASURE),
        (ratio is None, Unjudged.NO_MEASURE),
        (pair.another_machine and normalize_by is None, Unjudged.ANOTHER_MACHINE),
        (ratio is not None and ratio.low is None, Unjudged.ONE_ROUND),
    )
    return next((reason for holds, reason in checks if holds), None)


def _normalized(side: Side, system: str) -> dict[int, float]:
    """Throughput by round, relative to another system's of the same group."""
    divisor = trusted_speeds(side.group.rounds_by_system.get(system, ()))
    return {number: speed / divisor[number] for number, speed in side.speeds.items() if number in divisor}


def _shares_records(pair: Pair) -> bool:
    ours, theirs = ({(record.key, record.started_at) for record in side.records} for side in pair)
    return bool(ours & theirs)


def _mean(speeds: Mapping[int, float]) -> float | None:
    return statistics.geometric_mean(speeds.values()) if speeds else None
