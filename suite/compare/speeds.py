"""Whether a cell became slower or faster, told from its speed beside the baseline's in both runs."""

import enum

from suite.compare.runs import Pair
from suite.records.groups import is_baseline
from suite.tables.statistics import Estimate, log_speeds, unpaired_ratio


class Unjudged(enum.Enum):
    """Why a change of speed cannot be told from noise: what is the matter, and what to do."""

    NOT_MEASURED = ("not timed in both runs", "run systems that end ok in both, and not with another one's kernel")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_BASELINE = ("the baseline itself", "add the systems in question to both runs")
    NO_BASELINE = ("no baseline beside it, in one run at least", "run full_gpu with it, under the same options")
    ANOTHER_MACHINE = (
        "measured on two machines, or with other threads",
        "measure both runs on one machine with as many threads",
    )
    NO_INTERVAL = ("a single build: no interval", "run both with --rounds 3 or more")

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy


def compare_speeds(pair: Pair) -> tuple[Estimate | None, Unjudged | None]:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.

    Returns:
        RUN_B's ratio over RUN_A's, if there is something to compare, and why it decides nothing, unless it does.
    """
    unjudged = _not_comparable(pair)
    if unjudged is not None:
        return None, unjudged
    ratio = unpaired_ratio(*(log_speeds(row.records).values() for row in (pair.after, pair.before)))
    if ratio.low is None:
        unjudged = Unjudged.NO_INTERVAL
    elif pair.another_machine:
        unjudged = Unjudged.ANOTHER_MACHINE
    return ratio, unjudged


def _not_comparable(pair: Pair) -> Unjudged | None:
    ours, theirs = ({(record.key, record.started_at) for record in row.records} for row in pair)
    if any(row.steps_per_s is None for row in pair):
        return Unjudged.NOT_MEASURED
    if ours & theirs:
        return Unjudged.SAME_RECORDS
    if is_baseline(pair.before.system):
        return Unjudged.IS_THE_BASELINE
    return Unjudged.NO_BASELINE if any(row.ratio is None for row in pair) else None
