"""The verdict: one sentence that follows from a group's numbers and that a person can act on.

What a system costs or gains lies within its interval, which counts as no narrower than the noise floor. The table has
the interval; here its ends are rounded outward to steps, so that runs at two hours say the same of one machine. Bytes
are device bytes by the systems' own account.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from suite.records.groups import BASELINE, REFERENCE, RecordGroup, base_name, is_baseline
from suite.records.record import Status
from suite.tables.formatting import percent
from suite.tables.rows import Row, failure, merged_rows
from suite.tables.settings import cache
from suite.tables.statistics import Estimate, relative_speed

STEP: Final = 5
"""Costs and gains are told in steps of so many per cent. Most ratios of runs an hour apart differ by less."""

WIDEST: Final = 20
"""The largest difference, in per cent, that may hide in an interval before nothing is said of a system's speed."""

AUROC_TOLERANCE: Final = 1e-3
"""Largest difference of systems that train alike: roundings move it by up to 2.4e-4 (results/streams/rounding.json)."""


def verdict(group: RecordGroup) -> str:
    """Compare the systems of a group with the baseline and with each other, and name what cannot be said.

    The reference, controls, systems that run the baseline's own kernel and approximate ones are left out. Of a virtual
    device nothing is said.
    """
    if group.on_virtual_device:
        return ""
    merged = merged_rows(group)
    rows = [row for row in merged if row.exact]
    measured = [row for row in rows if row.status is Status.OK]
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    yardsticks = (BASELINE, REFERENCE)
    like = next((row for name in yardsticks for row in measured if base_name(row.system) == name), None)
    others = [row for row in measured if base_name(row.system) not in yardsticks]
    rivals = [row for row in others if row.passed and row.same_kernel_as is None]  # a control is not verified
    strayed = {row.system: words for row in rivals if like is not None and (words := strays(row, like))}
    sound = [row for row in rivals if row.system not in strayed]
    if not rivals and any(row.status is Status.OK and not row.exact for row in merged):
        said = []  # the approximate ones have a summary of their own
    elif not measured:
        said = ["nothing was measured: no system ended ok"]
    elif not rivals:
        said = [f"nothing to compare: no system beside {BASELINE} can be judged"]
    elif all(row.ratio is None for row in (*sound, *([baseline] if baseline else []))):
        why = "took no part" if baseline is None else "was not timed"
        if baseline is not None and baseline.status is not Status.OK:
            why = f"ended {failure(baseline).rstrip('.')}"
        said = [f"nothing can be said beside {BASELINE}, which {why}", *_fastest(sound, 0.0)]
    else:
        said = _beside(group, sound, baseline)
    return sentence([*said, *strayed.values(), *never(row for row in rows if row.status is Status.WRONG_ANSWER)])


def sentence(clauses: Sequence[str]) -> str:
    """Clauses as one sentence; empty where there is none."""
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


def strays(row: Row, like: Row) -> str:
    """A clause on a system whose AUROC is not that of one which trains alike; empty where it is, or is unknown."""
    auroc, right = row.auroc, like.auroc
    if auroc is None or right is None or abs(auroc - right) <= AUROC_TOLERANCE:
        return ""
    return f"do not choose {row.system} by speed: its AUROC is {auroc:.4f} where that of {like.system} is {right:.4f}"


def never(wrong: Iterable[Row]) -> list[str]:
    """A clause on systems that gave wrong answers."""
    names = list(dict.fromkeys(row.system for row in wrong))
    return [f"do not use {listed(names)}: wrong answers"] if names else []


def _beside(group: RecordGroup, rows: Sequence[Row], baseline: Row | None) -> list[str]:
    """Clauses on what systems cost and save beside the baseline; its record may be missing, its times are in theirs."""
    clear: defaultdict[str, list[Row]] = defaultdict(list)
    vague: defaultdict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (not _has_tier(row), -sum(_change(row)), row.system)):
        least, most = _change(row)
        if row.steps_per_s is None:
            vague["not timed, see the notes"].append(row)
        elif row.apart or (baseline is not None and baseline.apart):
            vague["paces alone and in turns differ, see the notes"].append(row)
        elif row.interrupted:
            vague["turns were interrupted, see the notes"].append(row)
        elif row.ratio is None:
            vague[f"timed alone, not beside {BASELINE}"].append(row)
        elif row.ratio.low is None:
            vague["there is no interval"].append(row)
        elif least < 0 < most and max(-least, most) > WIDEST:
            vague[f"noise hides up to {max(-least, most)} %"].append(row)
        else:
            saved = "" if group.on_cpu and _has_tier(row) else _bytes(row, baseline)  # a CPU saves no device's bytes
            clear[f"{_speed(least, most)}{saved}"].append(row)
    where = "this CPU" if group.on_cpu else group.key.device
    said = [
        f"{listed(row.system for row in same)} {words.format(s='' if len(same) > 1 else 's')}"
        for words, same in clear.items()
    ]
    if said:
        said[0] = f"on {where} with {cache(group.cell)}, beside {BASELINE}: {said[0]}"
    said += _fastest(rows, max((row.noise or 0.0 for row in rows), default=0.0))
    return [
        *said,
        *(f"nothing can be said of {listed(row.system for row in same)}: {why}" for why, same in vague.items()),
    ]


def _change(row: Row) -> tuple[int, int]:
    """Least and largest gain of a system beside the baseline, in per cent, rounded outward; costs are below 0."""
    speed = row.ratio and widened(row.ratio, row.noise or 0.0)
    if speed is None or speed.low is None or speed.high is None:
        return 0, 0
    return -_up(1 - speed.low), _up(speed.high - 1)


def _speed(least: int, most: int) -> str:
    """A cost or a gain, `{s}` where one system's verb ends; a single step to the other side is left out."""
    if max(-least, most) <= STEP or min(-least, most) > STEP:
        return f"stay{{s}} within {max(-least, most)} % of its throughput"
    verb, near, far = ("cost", -most, -least) if most <= STEP else ("gain", least, most)
    return f"{verb}{{s}} {f'{near} to' if near > 0 else 'up to'} {far} % of throughput"


def _has_tier(row: Row) -> bool:
    return bool(row.offloads) or row.device_bytes is not None


def _bytes(row: Row, baseline: Row | None) -> str:
    """Device bytes that a system saves beside the baseline, or takes more."""
    full, own = baseline and baseline.device_bytes, row.device_bytes
    if not _has_tier(row):
        return ", without offload"
    if not full:
        return ""
    saved = 1 - (own or 0) / full
    if saved > 0:
        return f" and save{{s}} {percent(saved)} of the device bytes"
    return f" and take{{s}} {_up(-saved)} % more device bytes" if saved < 0 else " and save{s} no device bytes"


def _fastest(rows: Sequence[Row], noise: float) -> list[str]:
    """The fastest of the systems that offload; nothing where there is no choice, or where they raced apart."""
    timed = [row for row in rows if row.steps_per_s is not None and not (row.apart or row.interrupted)]
    racing = [row for row in timed if row.offloads]
    if len(racing) < 2 or any(relative_speed(racing[0].records, other.records) is None for other in racing[1:]):
        return []
    # by ratios, as the intervals: paces of several contests carry the drift between them
    beside = {row.system: relative_speed(row.records, racing[0].records) for row in racing[1:]}
    speeds = {racing[0].system: 1.0} | {system: found.value for system, found in beside.items() if found is not None}
    first, *others = sorted(racing, key=lambda row: (-speeds[row.system], row.system))
    ratios = [(row, relative_speed(first.records, row.records)) for row in others]
    close = [row for row, found in ratios if found is None or widened(found, noise).spans_one]
    return [
        f"fastest of those that offload: {listed(row.system for row in (first, *close))}"
        f"{', too close to call' if close else ''}"
    ]


def widened(found: Estimate, noise: float) -> Estimate:
    """An estimate with an interval that is not narrower than the noise floor."""
    if found.low is None or found.high is None:
        return found
    low, high = min(found.low, found.value / (1 + noise)), max(found.high, found.value * (1 + noise))
    return Estimate(value=found.value, low=low, high=high)


def _up(share: float) -> int:
    """A share of 1 in per cent, rounded up to a step."""
    return STEP * math.ceil(round(100 * share / STEP, 6))


def listed(names: Iterable[str]) -> str:
    """Names as `a`, `a and b`, or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
