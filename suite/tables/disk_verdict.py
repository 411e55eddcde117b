"""What follows from a contest of rows on a drive, in sentences that a person can act on.

At every budget it speaks of the system that trains fastest, the rivals aside. No interval is taken to be narrower than
the noise floor, and where there is none the sentences say so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from suite.records.groups import IN_RAM, REFERENCE, base_name, is_baseline
from suite.records.status import Status
from suite.tables.disk import RIVALS, OnDrive, Step
from suite.tables.quantities import binary_bytes, count, percent
from suite.tables.statistics import Estimate
from suite.tables.verdict import AUROC_TOLERANCE, listed, never, not_by_speed, widened

NEAR: Final = 1.1
"""A rival that is beaten by no more than this is named."""


def sentences(whole: Sequence[OnDrive], alone: Sequence[OnDrive], table_bytes: int | None) -> tuple[str, ...]:
    """What systems give at each budget, where a rival comes near, and what cannot be said.

    Args:
        whole: Every system at every budget, in the whole step.
        alone: The same in the embedding step; none where it was not timed.
        table_bytes: Of all rows, without optimizer state; None: not known.
    """
    sound = [row for row in whole if _is_sound(row)]
    astray = _astray(whole)
    chosen = {budget: row for budget in _budgets(whole) if (row := _best(sound, astray, budget)) is not None}
    said = [_at(row, _same(alone, row), table_bytes) for row in chosen.values()]
    if not said:
        said.append(f"Nothing can be said: no system beside {IN_RAM} ended ok and was timed.")
    elif all(row.speed is None for row in chosen.values()):
        said.append(f"Nothing can be said beside {IN_RAM}, which {_why_not(whole)}.")
    near = [words for rival in RIVALS for words in _near(rival, [*whole, *alone], astray)]
    if any(_without_interval(row) for row in (*chosen.values(), *(_same(alone, one) for one in chosen.values()))):
        near.append(
            "Nothing can be said of how sure a ratio with `about` is, for it rests on one block of turns: measure "
            "again with more rounds (--rounds)."
        )
    wrong = dict.fromkeys(row.system for row in whole if row.status == Status.WRONG_ANSWER)
    return (*said, *near, *_missing(whole), *astray.values(), *never(list(wrong)))


def _without_interval(row: OnDrive | None) -> bool:
    ratios = [] if row is None else [row.speed, *map(row.over, RIVALS)]
    return any(ratio is not None and ratio.low is None for ratio in ratios)


def _is_sound(row: OnDrive) -> bool:
    """Whether a row may be chosen or compared with: timed, ok, verified and exact, and no yardstick."""
    yardstick = is_baseline(row.system) or base_name(row.system) == REFERENCE
    ended_well = row.status == Status.OK and row.verified not in ("no", None)
    return not yardstick and ended_well and row.exact and row.samples_per_s is not None


def _budgets(rows: Iterable[OnDrive]) -> list[int]:
    return sorted({row.host_budget_bytes for row in rows})


def _best(rows: Iterable[OnDrive], astray: Iterable[str], budget: int) -> OnDrive | None:
    """The fastest within a budget; a rival only where nobody else is."""
    fit = [row for row in rows if row.host_budget_bytes == budget and row.system not in astray]
    others = [row for row in fit if base_name(row.system) not in RIVALS]
    return max(others or fit, key=lambda row: row.samples_per_s or 0.0, default=None)


def _same(rows: Iterable[OnDrive], like: OnDrive) -> OnDrive | None:
    return next(
        (row for row in rows if (row.host_budget_bytes, row.system) == (like.host_budget_bytes, like.system)), None
    )


def _at(row: OnDrive, alone: OnDrive | None, table_bytes: int | None) -> str:
    """How a system does at a budget, in both kinds of step."""
    share = "" if not table_bytes else f", {_share(row.host_budget_bytes / table_bytes)} of the rows' bytes"
    where = f"At {binary_bytes(row.host_budget_bytes)}{share}, {row.system} trains"
    speed = row.speed
    if speed is not None:
        said = f"{where} at {_of(widened(speed, row.noise or 0.0))} of {IN_RAM}"
    else:
        said = f"{where} at {count(round(row.samples_per_s or 0))} samples/s"
    beside = [row, alone] if alone is not None else [row]
    compared = [(one, words) for one in beside if (words := _over_rivals(one))]
    # the whole step is compared only where the embedding step is not: computation hides what rows cost
    one, words = compared[-1] if compared else (row, "")
    where = f" in {one.step}" if one is alone else ""
    through = f", {one.compared}" if one.compared not in (None, "in turns") else ""
    return f"{said}{', and is ' if words else ''}{words}{where if words else ''}{through if words else ''}."


def _over_rivals(row: OnDrive) -> str:
    found = [_beside(over, rival) for rival in RIVALS if (over := _over(row, rival)) is not None]
    return listed(found) if found else ""


def _beside(over: Estimate, rival: str) -> str:
    if over.low is not None and over.spans_one:
        return f"too close to call with {rival}"
    return f"{_times(over)} as fast as {rival}"


def _over(row: OnDrive, rival: str) -> Estimate | None:
    over = row.over(rival)
    return None if over is None else widened(over, row.noise or 0.0)


def _near(rival: str, rows: Sequence[OnDrive], astray: Iterable[str]) -> list[str]:
    """Where a rival comes within 10 % of the best of the others, or passes it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for step in Step:
        sound = [row for row in rows if row.step == step and _is_sound(row)]
        for budget in _budgets(sound):
            best = _best(sound, astray, budget)
            over = _over(best, rival) if best is not None and base_name(best.system) not in RIVALS else None
            if best is not None and over is not None and (over.low or over.value) <= NEAR:
                place = f"in {step} at {binary_bytes(budget)} ({best.system} at {_of(over)} of its speed)"
                found[_nearness(over)].append(place)
    return [f"{rival} {how}: {'; '.join(places)}." for how, places in found.items()]


def _nearness(over: Estimate) -> str:
    """How near a rival comes that the best is so many times as fast as."""
    if (over.high or over.value) < 1:
        return "is faster than all others"
    return f"{'comes' if (over.high or over.value) <= NEAR else 'may come'} within 10 % of the best"


def _missing(rows: Sequence[OnDrive]) -> list[str]:
    """Which systems have nothing at which budgets, and why."""
    budgets = _budgets(rows)
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for system in dict.fromkeys(row.system for row in rows):
        here = {row.host_budget_bytes: row for row in rows if row.system == system}
        for budget in budgets:
            row = here.get(budget)
            if row is None:
                found[system, "was not run"].append(binary_bytes(budget))
            elif row.why:
                found[system, f"ended {row.why}"].append(binary_bytes(budget))
            elif row.verified == "no" and base_name(system) != REFERENCE:
                found[system, "was not verified"].append(binary_bytes(budget))
    return [f"At {listed(places)} {system} {why.rstrip('.')}." for (system, why), places in found.items()]


def _astray(rows: Iterable[OnDrive]) -> dict[str, str]:
    """Systems whose AUROC is not the baseline's at the same budget, and the sentence that says so."""
    rows = list(rows)
    like = {row.host_budget_bytes: row for row in rows if is_baseline(row.system)}
    found: dict[str, str] = {}
    for row in filter(_is_sound, rows):
        right = like.get(row.host_budget_bytes)
        if right is None or row.auroc is None or right.auroc is None:
            continue
        if abs(row.auroc - right.auroc) > AUROC_TOLERANCE:
            words = not_by_speed(row.system, row.auroc, like=right.system, right=right.auroc)
            found.setdefault(row.system, words)
    return found


def _why_not(rows: Iterable[OnDrive]) -> str:
    """Why nothing stands beside all rows in RAM."""
    found = [row for row in rows if is_baseline(row.system)]
    if not found:
        return "took no part"
    return next((f"ended {row.why.rstrip('.')}" for row in found if row.why), "took no turns with the others")


def _share(share: float) -> str:
    return percent(share, 0 if share >= 0.01 else 2)


def _of(ratio: Estimate) -> str:
    """A ratio as `0.93 to 0.97`, rounded outward."""
    return _range(ratio, lambda bound: 2)


def _times(ratio: Estimate) -> str:
    """A ratio as `4.9 to 5.3 times`, rounded outward."""
    return f"{_range(ratio, lambda bound: 2 if bound < 2 else 1)} times"


def _range(ratio: Estimate, decimals: Callable[[float], int]) -> str:
    if ratio.low is None or ratio.high is None:
        return f"about {ratio.value:.{decimals(ratio.value)}f}"
    places = decimals(ratio.low)
    scale = 10.0**places
    low, high = math.floor(round(scale * ratio.low, 6)) / scale, math.ceil(round(scale * ratio.high, 6)) / scale
    return f"{low:.{places}f}" if low == high else f"{low:.{places}f} to {high:.{places}f}"
