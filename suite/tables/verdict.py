"""What follows from a group's numbers, in sentences that a person can act on.

No interval is taken to be narrower than the noise floor, and a difference is told only where such an interval leaves
out 1. Bytes are device bytes by the systems' own account.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from suite.records.groups import BASELINE, REFERENCE, Group, base_name, is_baseline
from suite.records.status import Status
from suite.tables.rows import Row, failure, merged_rows, noise_floor
from suite.tables.settings import cache_size
from suite.tables.statistics import Estimate, places, relative_speed

WIDEST: Final = 0.10
"""The largest difference that may hide in an interval before nothing is said of a system's speed."""

AUROC_TOLERANCE: Final = 1e-3
"""By which systems that train alike may differ: rounding alone moves AUROC by up to 2e-4."""


def verdict(group: Group) -> tuple[str, ...]:
    """How the systems of a comparison stand to the baseline and to each other, and what cannot be said.

    The reference, controls, systems that run the baseline's own kernel and approximate ones are left out.
    """
    merged = merged_rows(group)
    rows = [row for row in merged if row.exact]
    measured = [row for row in rows if row.status is Status.OK and not row.again]
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    like = next((row for name in (BASELINE, REFERENCE) for row in measured if base_name(row.system) == name), None)
    rivals = [row for row in measured if _is_rival(row)]
    strayed = [row for row in rivals if like is not None and _distance(row, like) > AUROC_TOLERANCE]
    sound = [row for row in rivals if row not in strayed]
    if not measured:
        said = ["Nothing was measured: no system ended ok."]
    elif not rivals and len(rows) < len(merged):
        said = []  # the approximate ones have sentences of their own
    elif not rivals:
        said = [f"Nothing to compare: no system beside {BASELINE} was timed."]
    elif all(row.ratio is None for row in (*sound, *([baseline] if baseline else []))):
        said = _by_themselves(group, sound, baseline)
    else:
        said = _beside(group, sound, baseline, noise=noise_floor(rows) or 0.0)
    wrong = [row.system for row in rows if row.status is Status.WRONG_ANSWER]
    if like is not None:
        said += [not_by_speed(row.system, row.auroc, like=like.system, right=like.auroc) for row in strayed]
    return (*said, *never(wrong))


def _is_rival(row: Row) -> bool:
    """Whether the verdict speaks of a system that ended ok; one that was not verified is a control."""
    measure = is_baseline(row.system) or base_name(row.system) == REFERENCE
    return not measure and row.verified != "no" and row.computes_as is None


def _distance(row: Row, like: Row) -> float:
    return abs(row.auroc - like.auroc) if row.auroc is not None and like.auroc is not None else 0.0


def not_by_speed(system: str, auroc: float | None, *, like: str, right: float | None) -> str:
    """What to say of a system whose AUROC is not that of one which trains alike."""
    return f"Do not choose {system} by speed: its AUROC is {auroc:.4f} where that of {like} is {right:.4f}."


def never(wrong: Sequence[str]) -> list[str]:
    """What to say of systems that gave wrong answers."""
    return [f"Do not use {listed(wrong)}: wrong answers."] if wrong else []


@dataclass(frozen=True, kw_only=True)
class _Rival:
    """A system beside the baseline.

    Attributes:
        speed: Relative to the baseline's, with an interval that is not narrower than the noise floor.
        saved: Share of the baseline's device bytes; below 0 where it takes more, None where it has no device tier.
    """

    row: Row
    speed: Estimate
    saved: float | None

    @property
    def hidden(self) -> float:
        """The largest difference that the interval of a speed allows, where it spans 1; else 0."""
        low, high = _bounds([self])
        return max(1 - low, high - 1) if self.speed.spans_one else 0.0

    @property
    def side(self) -> int:
        """1: faster than the baseline; -1: slower; 0: no difference was seen."""
        return 0 if self.speed.spans_one else 1 if self.speed.value > 1 else -1


def _beside(group: Group, rows: Sequence[Row], baseline: Row | None, *, noise: float) -> list[str]:
    """What systems cost and save beside the baseline; its record may be missing, its times are in theirs."""
    rivals = [
        _Rival(
            row=row,
            speed=widened(row.relative, noise),
            saved=_saved(row, baseline),
        )
        for row in rows
        if row.relative is not None and row.ratio_low is not None
    ]
    clear = [rival for rival in rivals if rival.hidden <= WIDEST]
    vague = [rival for rival in rivals if rival.hidden > WIDEST]
    said = []
    if clear:
        tiers, resident = ([r for r in clear if (r.saved is not None) is tier] for tier in (True, False))
        clauses = [*_clauses(group, tiers, noise), *_clauses(group, resident, noise)]
        said.append(f"{_where(group)} {'; '.join(clauses)}.")
    standing = _places_of_offload(group, rows, noise)
    if len(standing) > 1:
        said.append(_fastest(standing))
    if vague:
        most = _up(max(rival.hidden for rival in vague))
        said.append(_nothing([rival.row for rival in vague], rows, f"noise hides differences of up to {most} %"))
    single = [row for row in rows if row.ratio_low is None and row.steps_per_s is not None]
    untimed = [row for row in rows if row.steps_per_s is None]
    said += [_nothing(single, rows, "there is no interval")] if single else []
    said += [f"{listed(row.system for row in untimed)}: not timed, see the notes."] if untimed else []
    return said


def _nothing(vague: Sequence[Row], rows: Sequence[Row], why: str) -> str:
    of = f" of {listed(row.system for row in vague)}" if len(vague) < len(rows) else ""
    return f"Nothing can be said{of}: {why}; measure again with more rounds (--rounds), on a quieter machine."


def _by_themselves(group: Group, rows: Sequence[Row], baseline: Row | None) -> list[str]:
    """Which system is fastest, where there is no baseline to stand beside."""
    if baseline is None:
        why = "took no part"
    else:
        why = "was not timed" if baseline.status is Status.OK else f"ended {failure(baseline).rstrip('.')}"
    standing = _places_of_offload(group, rows, 0.0)
    return [f"Nothing can be said beside {BASELINE}, which {why}.", *([_fastest(standing)] if standing else [])]


def _places_of_offload(group: Group, rows: Sequence[Row], noise: float) -> list[list[Row]]:
    """Systems that offload by place; none where there is nothing to choose from, or they raced apart."""
    racing = [row for row in rows if row.offloads and row.steps_per_s is not None]
    runs = [group.rounds_by_system[row.system] for row in racing]
    apart = any(relative_speed(runs[0], other) is None for other in runs[1:])
    return [] if len(racing) < 2 or apart else _ranked(group, racing, noise)


def _fastest(by_place: Sequence[Sequence[Row]]) -> str:
    first = [row.system for row in by_place[0]]
    if len(first) == 1:
        return f"Of those that offload, {first[0]} is the fastest."
    return f"Of those that offload, {listed(first)} are the fastest, too close to call."


def _clauses(group: Group, rivals: Sequence[_Rival], noise: float) -> list[str]:
    """What systems of one sort cost and save, the fastest first; those alike share a clause."""
    by_name = {rival.row.system: rival for rival in rivals}
    found: list[str] = []
    for rows in _ranked(group, [rival.row for rival in rivals], noise):
        alike = sorted((by_name[row.system] for row in rows), key=lambda rival: -rival.side)
        for _, same in groupby(alike, key=lambda rival: rival.side):
            found.append(_clause(list(same), first=not found))
        if len(rows) > 1:
            # Systems share a place with its first; the others need not be alike.
            first, *others = (row.system for row in rows)
            each = "each of " if len(others) > 1 else ""
            found.append(f"between {first} and {each}{listed(others)} no difference was seen")
    return found


def _clause(rivals: Sequence[_Rival], *, first: bool) -> str:
    """What systems on one side of the baseline cost and save; the first clause says of what."""
    low, high = _bounds(rivals)
    ending = "s" if len(rivals) == 1 else ""
    throughput, device_bytes = (" of throughput", " of the device bytes") if first else ("", "")
    if rivals[0].side < 0:
        said = f"cost{ending} {_range(1 - high, 1 - low)}{throughput}"
    elif rivals[0].side > 0:
        said = f"gain{ending} {_range(low - 1, high - 1)}{throughput}"
    else:
        said = f"show{ending} no difference from {BASELINE} (within {_up(max(1 - low, high - 1))} %)"
    resident = "" if any(rival.row.offloads or rival.saved is not None for rival in rivals) else ", without offload,"
    return f"{listed(rival.row.system for rival in rivals)}{resident} {said}{_bytes(rivals, ending, device_bytes)}"


def _bytes(rivals: Sequence[_Rival], ending: str, device_bytes: str) -> str:
    shares = [rival.saved for rival in rivals if rival.saved is not None]
    if not shares:
        return ""
    if min(shares) < 0:
        return f" and take{ending} {_up(-min(shares))} % more device bytes"
    if _share(max(shares)) == "0":
        return f" and save{ending} no device bytes"
    words = dict.fromkeys(_share(share) for share in sorted(shares))
    return f" and save{ending} {' to '.join([*words][:: max(len(words) - 1, 1)])} %{device_bytes}"


def _ranked(group: Group, rows: Sequence[Row], noise: float) -> list[list[Row]]:
    """Systems fastest first, those that share a place together."""
    runs = group.rounds_by_system

    def ratio(first: Row, other: Row) -> Estimate | None:
        found = relative_speed(runs[first.system], runs[other.system])
        return None if found is None else widened(found, noise)

    order = sorted(rows, key=lambda row: (-(row.steps_per_s or 0), row.system))
    found = places(order, ratio)
    return [[row for row, place in zip(order, found, strict=True) if place == at] for at in dict.fromkeys(found)]


def widened(found: Estimate, noise: float) -> Estimate:
    """An estimate with an interval that is not narrower than the noise floor."""
    if found.low is None or found.high is None:
        return found
    low, high = min(found.low, found.value / (1 + noise)), max(found.high, found.value * (1 + noise))
    return Estimate(value=found.value, low=low, high=high)


def _bounds(rivals: Iterable[_Rival]) -> tuple[float, float]:
    """The lowest and the highest speed that the intervals allow."""
    speeds = [rival.speed for rival in rivals]
    return min(speed.low or 0.0 for speed in speeds), max(speed.high or math.inf for speed in speeds)


def _saved(row: Row, baseline: Row | None) -> float | None:
    """Share of the baseline's device bytes that a system does without."""
    most, own = baseline and baseline.device_bytes, row.device_bytes
    if own is None and row.offloads:
        own = 0
    return 1 - own / most if most and own is not None else None


def _where(group: Group) -> str:
    device = "this CPU" if group.on_cpu else group.key.device
    if group.cell.device_budget_bytes is None and group.cell.cache_ratio is None:
        return f"On {device},"
    what = "a cache of" if group.cell.device_budget_bytes is None else "a device budget of"
    return f"On {device} with {what} {cache_size(group.cell)},"


def _range(least: float, most: float) -> str:
    """Two shares of 1 in per cent, rounded outward."""
    low = math.floor(round(100 * least, 6))
    return f"{low} to {_up(most)} %" if low > 0 else f"up to {_up(most)} %"


def _up(share: float) -> int:
    """A share of 1 in per cent, rounded up."""
    return math.ceil(round(100 * share, 6))


def _share(share: float) -> str:
    """A share of 1 in per cent; 100 is all of it."""
    return "over 99" if 0.995 <= share < 1 else f"{100 * share:.0f}"


def listed(names: Iterable[str]) -> str:
    """Names as `a`, `a and b`, or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
