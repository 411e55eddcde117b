"""Comparisons that the published tables rest on: paired ratios with an interval, and a ranking that admits ties.

Systems run in interleaved rounds, so that a machine that slows down slows all of them; ratios within a round cancel it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import GroupKey, is_baseline
from suite.records.record import Record
from suite.records.status import Status

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (any statistics textbook).
_T_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z_95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """How many times as fast one system is as another.

    Attributes:
        ratio: Geometric mean of the rounds' ratios, or ratio of the geometric means.
        low, high: 95 % confidence interval, Student's t on the logarithms. None: a single round has no spread.
        rounds: Rounds that both systems have.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def spans_one(self) -> bool:
        """Whether the two are too close to call: the interval contains 1, or there is none."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A system's place in a ranking by throughput.

    Attributes:
        place: From 1; a system too close to call with the first of a place shares that place.
        tied: The place is shared: printed with `=`.
        samples_per_s: Geometric mean over rounds.
    """

    place: int
    tied: bool
    system: str
    samples_per_s: float


def paired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> SpeedRatio | None:
    """Compare two systems round by round.

    Args:
        ours: Samples per second by round.
        theirs: The same of the system to compare with.

    Returns:
        The ratio ours / theirs over the rounds that both have; None where they share no round.

    Raises:
        ValueError: a speed is not positive.
    """
    if any(not speed > 0 for speed in (*ours.values(), *theirs.values())):
        raise ValueError("samples per second must be positive: leave out rounds that did not finish")
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    logs = [math.log(ours[number] / theirs[number]) for number in shared]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return SpeedRatio(ratio=math.exp(mean), low=None, high=None, rounds=1)
    half = t_quantile_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return SpeedRatio(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), rounds=len(logs))


def unpaired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> SpeedRatio:
    """Compare two systems whose rounds were not interleaved with each other: Welch's interval on the logarithms.

    Args:
        ours: Samples per second by round; the round numbers do not matter.
        theirs: The same of the system to compare with.

    Returns:
        The ratio ours / theirs; `rounds` is the smaller number of rounds. Without an interval where either has one.

    Raises:
        ValueError: there is no round, or a speed is not positive.
    """
    if any(not speed > 0 for speed in (*ours.values(), *theirs.values())):
        raise ValueError("samples per second must be positive: leave out rounds that did not finish")
    if not ours or not theirs:
        raise ValueError("nothing to compare: one side has no round")
    logs = [[math.log(speed) for speed in side.values()] for side in (ours, theirs)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    rounds = min(len(side) for side in logs)
    if rounds == 1:
        return SpeedRatio(ratio=math.exp(difference), low=None, high=None, rounds=1)
    errors = [statistics.variance(side) / len(side) for side in logs]
    total = sum(errors)
    if total == 0:
        return SpeedRatio(
            ratio=math.exp(difference), low=math.exp(difference), high=math.exp(difference), rounds=rounds
        )
    # Welch and Satterthwaite; rounded down, which only widens the interval
    degrees = total**2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, logs, strict=True))
    half = t_quantile_95(max(1, math.floor(degrees))) * math.sqrt(total)
    return SpeedRatio(
        ratio=math.exp(difference), low=math.exp(difference - half), high=math.exp(difference + half), rounds=rounds
    )


def t_quantile_95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t, to 3 decimals.

    Beyond the table by Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5).
    """
    if degrees <= len(_T_95):
        return _T_95[degrees - 1]
    z, n = _Z_95, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def samples_per_s_by_round(rounds: Iterable[Record]) -> dict[int, float]:
    """Throughput by round of those records of one system that have a measurement."""
    return {
        record.cell.round: record.measurement.timing.samples_per_s
        for record in rounds
        if record.measurement is not None
    }


def rank(records: Sequence[Record]) -> tuple[Standing, ...]:
    """Rank the offloading systems of one comparison group by throughput, fastest first.

    A system takes part when every one of its rounds ended `ok`, passed verification and says that it offloads. On CUDA
    the all-on-device baseline takes part too; on a CPU it is host-resident like everything else there and does not.

    Returns:
        The standings; empty where fewer than two systems take part, since a ranking of one says nothing.

    Raises:
        ValueError: the records belong to more than one group.
    """
    if len({GroupKey.of(record) for record in records}) > 1:
        raise ValueError("records of different machines, devices, data or settings cannot be ranked: group them first")
    rounds = {name: [r for r in records if r.cell.system == name] for name in {r.cell.system for r in records}}
    speeds = {
        name: samples_per_s_by_round(runs) for name, runs in rounds.items() if all(takes_part(run) for run in runs)
    }
    if len(speeds) < 2:
        return ()
    # The geometric mean agrees with the paired ratios, which the median over rounds need not.
    means = {system: statistics.geometric_mean(by_round.values()) for system, by_round in speeds.items()}
    order = sorted(means, key=lambda system: (-means[system], system))
    places = [1]
    for position, system in enumerate(order[1:], start=2):
        ratio = paired_ratio(speeds[order[places[-1] - 1]], speeds[system])  # with the first of the place before
        places.append(places[-1] if ratio is None or ratio.spans_one else position)
    return tuple(
        Standing(place=place, tied=places.count(place) > 1, system=system, samples_per_s=means[system])
        for place, system in zip(places, order, strict=True)
    )


def takes_part(record: Record) -> bool:
    """Whether a record may be ranked: ok, verified, and offloading (or the baseline, on CUDA)."""
    if record.status is not Status.OK or record.measurement is None:
        return False
    if record.verification is None or not record.verification.passed:
        return False
    baseline = is_baseline(record.cell.system) and record.cell.device == "cuda"
    return record.measurement.offloads or baseline
