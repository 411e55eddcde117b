"""What follows from a group's numbers, in sentences that a person can act on.

What a system costs or gains lies within its interval, which counts as no narrower than the noise floor. The table has
the interval; here its ends are rounded outward to steps, so that runs at two hours say the same of one machine. Bytes
are device bytes by the systems' own account.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final

from suite.records.groups import BASELINE, REFERENCE, Group, base_name, is_baseline
from suite.records.status import Status
from suite.tables.rows import Row, failure, merged_rows
from suite.tables.settings import cache_size
from suite.tables.statistics import Estimate, places, relative_speed

STEP: Final = 5
"""Costs and gains are told in steps of so many per cent. Most ratios of runs an hour apart differ by less."""

WIDEST: Final = 20
"""The largest difference, in per cent, that may hide in an interval before nothing is said of a system's speed."""

AUROC_TOLERANCE: Final = 1e-3
"""By which systems that train alike may differ: rounding alone moves AUROC by up to 2.4e-4."""


def verdict(group: Group) -> tuple[str, ...]:
    """How the systems of a comparison stand to the baseline and to each other, and what cannot be said.

    The reference, controls, systems that run the baseline's own kernel and approximate ones are left out. Of a virtual
    device nothing is said.
    """
    if group.on_virtual_device:
        return ()
    merged = merged_rows(group)
    rows = [row for row in merged if row.exact]
    measured = [row for row in rows if row.status is Status.OK and not row.again]
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    like = next((row for name in (BASELINE, REFERENCE) for row in measured if base_name(row.system) == name), None)
    rivals = [row for row in measured if _is_rival(row)]
    strayed = {row.system: words for row in rivals if like is not None and (words := strays(row, like))}
    sound = [row for row in rivals if row.system not in strayed]
    if not rivals and any(row.status is Status.OK and not row.exact for row in merged):
        said = []  # the approximate ones have sentences of their own
    elif not measured:
        said = ["Nothing was measured: no system ended ok."]
    elif not rivals:
        said = [f"Nothing to compare: no system beside {BASELINE} can be judged."]
    elif all(row.ratio is None for row in (*sound, *([baseline] if baseline else []))):
        said = _by_themselves(sound, baseline)
    else:
        said = _beside(group, sound, baseline, noise=merged[0].noise or 0.0)
    wrong = [row.system for row in rows if row.status is Status.WRONG_ANSWER]
    return (*said, *strayed.values(), *never(wrong))


def _is_rival(row: Row) -> bool:
    """Whether the verdict speaks of a system that ended ok; one that was not verified is a control."""
    measure = is_baseline(row.system) or base_name(row.system) == REFERENCE
    return not measure and row.passed and row.computes_as is None


def strays(row: Row, like: Row) -> str:
    """What to say of a system whose AUROC is not that of one which trains alike; nothing where it is, or is unknown."""
    auroc, right = row.auroc, like.auroc
    if auroc is None or right is None or abs(auroc - right) <= AUROC_TOLERANCE:
        return ""
    return f"Do not choose {row.system} by speed: its AUROC is {auroc:.4f} where that of {like.system} is {right:.4f}."


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
    def change(self) -> tuple[int, int]:
        """What it gains at least and at most, in per cent, in steps; costs are below 0."""
        assert self.speed.low is not None
        assert self.speed.high is not None
        return -_up(1 - self.speed.low, STEP), _up(self.speed.high - 1, STEP)

    @property
    def hidden(self) -> int:
        """The largest difference that the interval of a speed allows, in per cent, where it spans 1; else 0."""
        return max(map(abs, self.change)) if self.speed.spans_one else 0


def _beside(group: Group, rows: Sequence[Row], baseline: Row | None, *, noise: float) -> list[str]:
    """What systems cost and save beside the baseline; its record may be missing, its times are in theirs."""
    rivals = [
        _Rival(row=row, speed=widened(row.relative, noise), saved=_saved(row, baseline))
        for row in rows
        if row.relative is not None and row.ratio_low is not None
    ]
    clear = [rival for rival in rivals if rival.hidden <= WIDEST]
    vague = [rival for rival in rivals if rival.hidden > WIDEST]
    said = []
    if clear:
        tiers, resident = ([r for r in clear if (r.saved is not None) is tier] for tier in (True, False))
        clauses = [*_clauses(tiers, noise), *_clauses(resident, noise)]
        said.append(f"{_where(group)} {'; '.join(clauses)}.")
    standing = _places_of_offload(rows, noise)
    if len(standing) > 1:
        said.append(_fastest(standing))
    if vague:
        most = max(rival.hidden for rival in vague)
        said.append(_nothing([rival.row for rival in vague], rows, f"noise hides differences of up to {most} %"))
    alone = [row for row in rows if row.relative is None and row.steps_per_s is not None]
    single = [row for row in rows if row.relative is not None and row.ratio_low is None]
    untimed = [row for row in rows if row.steps_per_s is None]
    said += [_nothing(single, rows, "there is no interval")] if single else []
    said += [f"{listed(row.system for row in alone)}: timed alone, not beside {BASELINE}."] if alone else []
    said += [f"{listed(row.system for row in untimed)}: not timed, see the notes."] if untimed else []
    return said


def _nothing(vague: Sequence[Row], rows: Sequence[Row], why: str) -> str:
    of = f" of {listed(row.system for row in vague)}" if len(vague) < len(rows) else ""
    return f"Nothing can be said{of}: {why}; measure again with more rounds (--rounds), on a quieter machine."


def _by_themselves(rows: Sequence[Row], baseline: Row | None) -> list[str]:
    """Which system is fastest, where there is no baseline to stand beside."""
    if baseline is None:
        why = "took no part"
    else:
        why = "was not timed" if baseline.status is Status.OK else f"ended {failure(baseline).rstrip('.')}"
    standing = _places_of_offload(rows, 0.0)
    return [f"Nothing can be said beside {BASELINE}, which {why}.", *([_fastest(standing)] if standing else [])]


def _places_of_offload(rows: Sequence[Row], noise: float) -> list[list[Row]]:
    """Systems that offload by place, fastest first; none where there is nothing to choose from, or they raced apart."""
    racing = [row for row in rows if row.offloads and row.steps_per_s is not None]
    if len(racing) < 2 or any(_ratio(racing[0], other, noise) is None for other in racing[1:]):
        return []
    order = sorted(racing, key=lambda row: (-(row.steps_per_s or 0), row.system))
    found = places(order, partial(_ratio, noise=noise))
    return [[row for row, place in zip(order, found, strict=True) if place == at] for at in dict.fromkeys(found)]


def _ratio(row: Row, other: Row, noise: float) -> Estimate | None:
    """How many times as fast one system is as another; None where they cannot be compared."""
    found = relative_speed(row.records, other.records)
    return None if found is None else widened(found, noise)


def _fastest(by_place: Sequence[Sequence[Row]]) -> str:
    first = [row.system for row in by_place[0]]
    if len(first) == 1:
        return f"Of those that offload, {first[0]} is the fastest."
    return f"Of those that offload, {listed(first)} are the fastest, too close to call."


def _clauses(rivals: Sequence[_Rival], noise: float) -> list[str]:
    """What systems of one sort cost and save, the least costly first; those alike share a clause."""
    alike: dict[tuple[str, str, bool], list[_Rival]] = {}
    for rival in sorted(rivals, key=lambda rival: (-sum(rival.change), rival.row.system)):
        alike.setdefault((*_stand(rival), (rival.saved or 0) < 0), []).append(rival)
    return [
        _clause(same, verb, amount, noise=noise, first=not index)
        for index, ((verb, amount, _), same) in enumerate(alike.items())
    ]


def _stand(rival: _Rival) -> tuple[str, str]:
    """How a system stands to the baseline: a verb, and an amount. A single step to the other side is not told."""
    least, most = rival.change
    if max(-least, most) <= STEP or min(-least, most) > STEP:
        return "stay", f"within {max(-least, most)} % of {BASELINE}'s throughput"
    if most <= STEP:
        return "cost", f"{-most} to {-least} %" if most < 0 else f"up to {-least} %"
    return "gain", f"{least} to {most} %" if least > 0 else f"up to {most} %"


def _clause(same: Sequence[_Rival], verb: str, amount: str, *, noise: float, first: bool) -> str:
    """What systems that stand alike cost and save; the first clause says of what."""
    ending = "s" if len(same) == 1 else ""
    throughput, device_bytes = (" of throughput", " of the device bytes") if first else ("", "")
    resident = "" if any(rival.row.offloads or rival.saved is not None for rival in same) else ", without offload,"
    said = [f"{verb}{ending} {amount}{'' if verb == 'stay' else throughput}"]
    apart = _apart(same, noise)
    if apart is not None and apart < max(most - least for least, most in (rival.change for rival in same)):
        said.append(f"differ by at most {apart} %")
    if saved := _bytes(same, ending, device_bytes):
        said.append(saved)
    return f"{listed(rival.row.system for rival in same)}{resident} {listed(said)}"


def _apart(rivals: Sequence[_Rival], noise: float) -> int | None:
    """By how much systems may differ in speed, in per cent; None: there is one, or some cannot be compared."""
    found = [_ratio(first.row, second.row, noise) for first, second in combinations(rivals, 2)]
    ratios = [ratio for ratio in found if ratio is not None and ratio.low is not None]
    if not ratios or len(ratios) < len(found):
        return None
    return max(_up(end - 1, STEP) for ratio in ratios for end in (ratio.high or 1, 1 / (ratio.low or 1)))


def _bytes(rivals: Sequence[_Rival], ending: str, device_bytes: str) -> str:
    shares = [rival.saved for rival in rivals if rival.saved is not None]
    if not shares:
        return ""
    if min(shares) < 0:
        return f"take{ending} {'up to ' if len(shares) > 1 else ''}{_up(-min(shares))} % more device bytes"
    if _share(max(shares)) == "0":
        return f"save{ending} no device bytes"
    words = dict.fromkeys(_share(share) for share in sorted(shares))
    return f"save{ending} {' to '.join([*words][:: max(len(words) - 1, 1)])} %{device_bytes}"


def widened(found: Estimate, noise: float) -> Estimate:
    """An estimate with an interval that is not narrower than the noise floor."""
    if found.low is None or found.high is None:
        return found
    low, high = min(found.low, found.value / (1 + noise)), max(found.high, found.value * (1 + noise))
    return Estimate(value=found.value, low=low, high=high)


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


def _up(share: float, step: int = 1) -> int:
    """A share of 1 in per cent, rounded up to a step."""
    return step * math.ceil(round(100 * share / step, 6))


def _share(share: float) -> str:
    """A share of 1 in per cent; above 99 with a decimal, rounded down, so that 100 is all of it."""
    return f"{math.floor(1000 * share) / 10:g}" if share > 0.99 else f"{100 * share:.0f}"


def listed(names: Iterable[str]) -> str:
    """Names as `a`, `a and b`, or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
