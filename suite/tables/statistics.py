"""Statistics of printed speeds: log ratios of systems that took turns, with a 95 % interval.

In a turn the systems train the same batches one after another, so a machine that slows down slows all of them, and the
logarithm of the baseline's time over a system's hardly shows it. The median over the turns of a build leaves out what
hit one of them alone. Builds of one process are alike, and two processes differ by more: where there are three rounds
or more, each in processes of its own, the sample that Student's interval is of are the means of the rounds. With fewer
it is the builds, and the interval holds within that run. `results/turns/intervals.json` has how often such an interval
misses, simulated. The intervals are scipy's.
"""

import itertools
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.records.groups import is_baseline
from suite.records.measured import Turns
from suite.records.record import Record, Status

BuildKey = tuple[str, int]
"""A contest, and one of its builds: within it, systems had the same turns."""
ENOUGH_RUNS = 3
"""With fewer contests an interval is over builds, and holds within the run."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A ratio of two systems' speeds, or a mean.

    Attributes:
        value: The ratio or mean.
        low, high: 95 % confidence interval. None: a single build or round has no spread.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def spans_one(self) -> bool:
        """Whether two systems are too close to call: the interval of their ratio contains 1, or there is none."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high

    @property
    def noise(self) -> float | None:
        """Noise: the distance from 1 that a ratio of equals may show, a share; None: there is no interval.

        Half the interval's width, or the distance from 1 where that is more.
        """
        return None if self.low is None or self.high is None else max((self.high - self.low) / 2, abs(self.value - 1))


ITSELF = Estimate(value=1.0, low=None, high=None)
"""A system beside itself: there is nothing to estimate."""


def speed_of(runs: Sequence[Record], baseline: Sequence[Record] | None) -> dict[str, Any]:
    """A system's speed in its turns, over all rounds: fields of a row; none where it took no turns.

    Steps per second are those of the system's own turns; the ratio compares them with the baseline's in the same turns.
    In the total, all steps over all seconds of its turns, stalls show.

    Args:
        runs: Its rounds.
        baseline: The baseline's. Empty: they are not at hand, and its times beside the system's count. None: it cannot
            be trusted, and nobody has a ratio.
    """
    own = _turns(runs)
    if not own:
        return {}
    itself = is_baseline(runs[0].cell.system)
    ratio = embedding = None
    if itself or (baseline is not None and _beside_a_baseline(runs)):
        ratio, embedding = ratio_of(samples_of(log_speeds(runs))), _embedding_ratio(own)
    if itself:
        ratio, embedding = ITSELF, embedding and ITSELF
    return _speed(runs, own, ratio) | {"alone_steps_per_s": _alone(runs), "embedding_ratio": embedding}


def repeat_speed(baseline: Sequence[Record]) -> dict[str, Any]:
    """Speed of the baseline's repeat, beside the baseline in the same turns: fields of a row, as of `speed_of`."""
    beside = [turns for turns in _turns(baseline) if turns.baseline_s is not None]
    if not beside:
        return {}
    repeat = list(map(_baseline_first, beside))
    found = _speed(baseline, repeat, ratio_of(samples_of(_log_speeds(repeat))))
    return found | {"embedding_ratio": _embedding_ratio(repeat)}


def _speed(runs: Sequence[Record], own: Sequence[Turns], ratio: Estimate | None) -> dict[str, Any]:
    """Fields of a row: the pace of its own turns, and the ratio to the baseline's in the same turns."""
    steps_per_s = _pace(own, "system_s")
    assert steps_per_s is not None
    seconds = sum(second for turns in own for build in turns.system_s for second in build)
    samples_per_s = steps_per_s * runs[0].cell.batch_size
    epoch = next((run.measurement.epoch_samples for run in runs if run.measurement is not None), None)
    return {
        "steps_per_s": steps_per_s,
        "total_steps_per_s": sum(turns.steps * sum(map(len, turns.system_s)) for turns in own) / seconds,
        "samples_per_s": samples_per_s,
        "epoch_s": None if epoch is None else epoch / samples_per_s,
        "ratio": ratio,
        "way": " / ".join(dict.fromkeys(turns.way for turns in own)),
        "builds": sum(len(turns.system_s) for turns in own),
    }


def _alone(runs: Sequence[Record]) -> float | None:
    """Steps per second with nobody beside it, mean over rounds: in its runs alone, or in a cell without such.

    None: not measured, or by a cell too short for it. On a drive a cell trains some steps before its rows have come to
    rest, and turns are taken alone.
    """
    if (pace := _pace_alone(_turns(runs), "system_s", "alone_s")) is not None:
        return pace
    timed = (run for run in runs if run.cell.host_budget_bytes is None)
    timings = [run.measurement.timing for run in timed if run.measurement is not None]
    known = [pace for timing in timings if timing is not None and (pace := timing.alone_steps_per_s) is not None]
    return statistics.geometric_mean(known) if known else None


def turned_and_alone(runs: Sequence[Record]) -> Iterator[tuple[str, float, float]]:
    """Who, and its steps per second in turns and alone: a system, and the baseline beside it."""
    own = _turns(runs)
    beside = next((turns.baseline for turns in own if turns.baseline is not None), "")
    series = [(runs[0].cell.system, "system_s", "alone_s"), (f"{beside} beside it", "baseline_s", "baseline_alone_s")]
    for name, *times in series:
        turned, alone = _pace(own, times[0]), _pace_alone(own, *times)
        if turned is not None and alone is not None:
            yield name, turned, alone


def _embedding_ratio(own: Sequence[Turns]) -> Estimate | None:
    """Speed of the embedding step alone relative to the baseline's; None: not measured, or the baseline itself."""
    alone = [one for one in map(embedding_turns, own) if one is not None and one.baseline_s is not None]
    return ratio_of(samples_of(_log_speeds(alone))) if alone else None


def embedding_turns(turns: Turns) -> Turns | None:
    """The turns of the embedding step alone in place of the whole step's; None: there are none."""
    if turns.embedding_s is None:
        return None
    alone = {"system_s": turns.embedding_s, "baseline_s": turns.baseline_embedding_s, "drive": turns.embedding_drive}
    return turns.model_copy(update=alone)


def _baseline_first(turns: Turns) -> Turns:
    """Swap the two sides of turns: times of the baseline, or in its own turns those of its repeat, come first."""
    swapped = {"system_s": turns.baseline_s, "baseline_s": turns.system_s}
    alone = {"embedding_s": turns.baseline_embedding_s, "baseline_embedding_s": turns.embedding_s}
    return turns.model_copy(update=swapped | alone)


def samples_of(logs: Mapping[BuildKey, float]) -> list[float]:
    """Samples of an interval: the means of contests if they are enough, else builds."""
    contests: defaultdict[str, list[float]] = defaultdict(list)
    for (contest, _), log in logs.items():
        contests[contest].append(log)
    return [*map(statistics.fmean, contests.values())] if len(contests) >= ENOUGH_RUNS else [*logs.values()]


def log_speeds(runs: Iterable[Record]) -> dict[BuildKey, float]:
    """Median over turns of the log speed relative to the baseline's in the same turns, by build.

    Of the baseline itself: 0. Of systems that raced without a baseline: the log of turns per second, which may be
    compared within its build alone.
    """
    found: dict[BuildKey, float] = {}
    for run in runs:
        logs = _log_speeds(_turns([run]))
        found |= dict.fromkeys(logs, 0.0) if is_baseline(run.cell.system) else logs
    return found


def _log_speeds(timed: Iterable[Turns]) -> dict[BuildKey, float]:
    found = {}
    for turns in timed:
        for build, own in enumerate(turns.system_s):
            beside = [1.0] * len(own) if turns.baseline_s is None else turns.baseline_s[build]
            logs = (math.log(theirs / ours) for ours, theirs in zip(own, beside, strict=True))
            found[turns.contest, build] = statistics.median(logs)
    return found


def mean_of(values: Collection[float], less: Collection[float] = ()) -> Estimate:
    """A mean with Student's interval, or its difference from the mean of another sample with Welch's."""
    samples = [list(sample) for sample in (values, less) if sample]
    middle = statistics.fmean(values) - (statistics.fmean(less) if less else 0.0)
    if min(map(len, samples)) == 1:
        return Estimate(value=middle, low=None, high=None)
    if all(len(set(sample)) == 1 for sample in samples):  # scipy divides by the spread
        return Estimate(value=middle, low=middle, high=middle)
    from scipy.stats import ttest_1samp, ttest_ind  # takes most of a second

    # builds that are nearly equal lose digits in their spread, which then is next to nothing: no reader's concern
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        test = ttest_ind(*samples, equal_var=False) if less else ttest_1samp(*samples, 0)
        low, high = test.confidence_interval(0.95)
    return Estimate(value=middle, low=low, high=high)


def ratio_of(logs: Collection[float], beside: Collection[float] = ()) -> Estimate:
    """The mean of log ratios, one per build or run, as a ratio; `beside` has those of another side, of other builds."""
    log = mean_of(logs, beside)
    low, high = (None if end is None else math.exp(end) for end in (log.low, log.high))
    return Estimate(value=math.exp(log.value), low=low, high=high)


def relative_speed(ours: Sequence[Record], theirs: Sequence[Record]) -> Estimate | None:
    """Ratio of two systems' speeds.

    Where both raced in a contest, build by build. Else both had a baseline beside them, and their ratios to it are
    compared, as those of two cache sizes are.

    Returns:
        None where they can be compared in neither way.
    """
    logs = log_speeds(ours), log_speeds(theirs)
    if (found := _in_the_same_turns(*logs)) is not None:
        return found
    if all(logs) and _beside_a_baseline(ours) and _beside_a_baseline(theirs):
        return ratio_of(*map(samples_of, logs))
    return None


def met_in_turns(ours: Sequence[Record], theirs: Sequence[Record]) -> bool:
    """Whether two systems took turns with each other."""
    return bool(log_speeds(ours).keys() & log_speeds(theirs).keys())


def kernel_ratio(
    runs: Sequence[Record], ratio: Estimate | None, systems: Mapping[str, Sequence[Record]]
) -> Estimate | None:
    """Speed relative to the plain table of a system's own kernel; None where they took no turns with each other."""
    plain = next((run.measurement.plain_table for run in runs if run.measurement is not None), None)
    if ratio is None or plain is None or is_baseline(plain):
        return ratio
    return _in_the_same_turns(log_speeds(runs), log_speeds(systems.get(plain, ())))


def _in_the_same_turns(ours: Mapping[BuildKey, float], theirs: Mapping[BuildKey, float]) -> Estimate | None:
    """Ratio of two systems' speeds from the builds that they share; None: there are none."""
    shared = sorted(ours.keys() & theirs.keys())
    return ratio_of(samples_of({build: ours[build] - theirs[build] for build in shared})) if shared else None


def _turns(runs: Iterable[Record]) -> list[Turns]:
    return [run.turns for run in runs if run.turns is not None]


def _beside_a_baseline(runs: Iterable[Record]) -> bool:
    return all(run.turns is None or run.turns.baseline_s is not None or is_baseline(run.cell.system) for run in runs)


def _pace(timed: Iterable[Turns], times: str) -> float | None:
    """Steps per second from these times: of every build the median, of these the mean; None: there are none."""
    of_each = [(turns.steps, getattr(turns, times)) for turns in timed]
    if not of_each or any(builds is None for _, builds in of_each):
        return None
    logs = [[math.log(steps / second) for second in build] for steps, builds in of_each for build in builds]
    return math.exp(statistics.fmean(map(statistics.median, logs)))


def _pace_alone(timed: Sequence[Turns], turned: str, alone: str) -> float | None:
    """Steps per second in runs alone, of these times, by their distance from the turns; None: there are none.

    The distance is one median over all builds, because a build has few runs: of few, a median is slow where a machine
    has slow spells.
    """
    pace = _pace(timed, turned)
    if pace is None or any(getattr(turns, alone) is None for turns in timed):
        return None
    slowed = [slowed_alone(getattr(one, turned), getattr(one, alone), one.alone_behind) for one in timed]
    return pace * math.exp(-statistics.median(itertools.chain(*slowed)))


def slowed_alone(
    turned: Sequence[Sequence[float]], alone: Sequence[Sequence[float]], behind: Sequence[int] | None
) -> list[float]:
    """Of every run alone: the logarithm of its seconds over those of the turn right before it.

    Args:
        turned: Seconds of every turn, by build.
        alone: Seconds of every run alone, of as many steps, by build.
        behind: The turn before each run of a build. None: not known, then it is the median turn of the build.
    """
    found = []
    for turns, runs in zip(turned, alone, strict=True):
        before = [statistics.median(turns)] * len(runs) if behind is None else [turns[turn] for turn in behind]
        found += [math.log(run / turn) for run, turn in zip(runs, before, strict=True)]
    return found


def trusted_baseline(systems: Iterable[Sequence[Record]]) -> Sequence[Record] | None:
    """The baseline's rounds among those of all systems; None where one gave a wrong answer."""
    runs = next((runs for runs in systems if is_baseline(runs[0].cell.system)), ())
    return None if any(run.status is Status.WRONG_ANSWER for run in runs) else runs
