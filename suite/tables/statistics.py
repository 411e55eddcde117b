"""What the published comparisons rest on: means and ratios with a 95 % interval, and a ranking that admits ties.

Systems run in interleaved rounds, so that a machine that slows down slows all of them: ratios within a round cancel it.
Everything is computed on logarithms, because speeds differ by factors. The intervals are scipy's.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from suite.records.groups import GroupKey, is_baseline
from suite.records.record import Record
from suite.records.status import Status

_CONFIDENCE = 0.95
_System = TypeVar("_System")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A geometric mean over rounds, or how many times as fast one system is as another.

    Attributes:
        value: The mean, or the ratio.
        low, high: 95 % confidence interval. None: a single round has no spread.
        rounds: Rounds that it rests on; of two unpaired sides the smaller number.
    """

    value: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def spans_one(self) -> bool:
        """Whether two systems are too close to call: the interval of their ratio contains 1, or there is none."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A system's place in a ranking by throughput.

    Attributes:
        place: From 1; a system too close to call with the first of a place shares that place.
        tied: Whether the place is shared.
        samples_per_s: Geometric mean over rounds.
    """

    place: int
    tied: bool
    system: str
    samples_per_s: float


def mean_of_rounds(values: Iterable[float]) -> Estimate:
    """The geometric mean of positive values, one per round, with Student's interval."""
    logs = [math.log(value) for value in values]
    if len(logs) == 1:
        return _estimate(logs[0], None, rounds=1)
    from scipy.stats import ttest_1samp  # takes most of a second

    with _without_rounding_warnings():
        interval = ttest_1samp(logs, 0).confidence_interval(_CONFIDENCE)
    return _estimate(statistics.fmean(logs), interval, rounds=len(logs))


def paired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Compare two systems round by round.

    Args:
        ours: Samples per second by round.
        theirs: The same of the system to compare with.

    Returns:
        The ratio ours / theirs over the rounds that both have; None where they share no round.

    Raises:
        ValueError: a speed is not positive.
    """
    _check_positive(ours, theirs)
    shared = sorted(ours.keys() & theirs.keys())
    return mean_of_rounds(ours[number] / theirs[number] for number in shared) if shared else None


def unpaired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """Compare two systems whose rounds were not interleaved with each other: Welch's interval on the logarithms.

    Args:
        ours: Samples per second by round; the round numbers do not matter.
        theirs: The same of the system to compare with.

    Returns:
        The ratio ours / theirs. Without an interval where either has one round.

    Raises:
        ValueError: there is no round, or a speed is not positive.
    """
    _check_positive(ours, theirs)
    if not ours or not theirs:
        raise ValueError("nothing to compare: one side has no round")
    logs = [[math.log(speed) for speed in side.values()] for side in (ours, theirs)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    rounds = min(len(side) for side in logs)
    if rounds == 1:
        return _estimate(difference, None, rounds=1)
    if all(len(set(side)) == 1 for side in logs):  # rounds that do not differ: scipy divides by their spread
        return _estimate(difference, (difference, difference), rounds=rounds)
    from scipy.stats import ttest_ind

    with _without_rounding_warnings():
        interval = ttest_ind(*logs, equal_var=False).confidence_interval(_CONFIDENCE)
    return _estimate(difference, interval, rounds=rounds)


def _estimate(log: float, interval: tuple[float, float] | None, *, rounds: int) -> Estimate:
    low, high = (None, None) if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    return Estimate(value=math.exp(log), low=low, high=high, rounds=rounds)


def _check_positive(*sides: Mapping[int, float]) -> None:
    if any(not speed > 0 for side in sides for speed in side.values()):
        raise ValueError("samples per second must be positive: leave out rounds that did not finish")


def _without_rounding_warnings() -> warnings.catch_warnings:
    """Rounds that are nearly equal lose digits in their spread, which then is next to nothing: no reader's concern."""
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning)


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
    shared = places(order, lambda first, other: paired_ratio(speeds[first], speeds[other]))
    return tuple(
        Standing(place=place, tied=shared.count(place) > 1, system=system, samples_per_s=means[system])
        for place, system in zip(shared, order, strict=True)
    )


def places(order: Sequence[_System], ratio: Callable[[_System, _System], Estimate | None]) -> list[int]:
    """The place of each system, from 1.

    Args:
        order: The systems, fastest first.
        ratio: How many times as fast the first is as the second; None where they cannot be compared.

    Returns:
        One place per system. A system too close to call with the first of the place before it shares that place.
    """
    found = [1][: len(order)]
    for position, system in enumerate(order[1:], start=2):
        found_ratio = ratio(order[found[-1] - 1], system)
        found.append(found[-1] if found_ratio is None or found_ratio.spans_one else position)
    return found


def takes_part(record: Record) -> bool:
    """Whether a record may be ranked: ok, verified, and offloading (or the baseline, on CUDA)."""
    if record.status is not Status.OK or record.measurement is None:
        return False
    if record.verification is None or not record.verification.passed:
        return False
    baseline = is_baseline(record.cell.system) and record.cell.device == "cuda"
    return record.measurement.offloads or baseline
