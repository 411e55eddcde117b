"""The recommendation: the fastest case within the budget, the runner-up, why, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.advise.case import Case
from suite.advise.costs import Counts
from suite.advise.described import DescribedCosts
from suite.advise.model import Costs, Prediction, predict
from suite.records.model import Model
from suite.tables.quantities import binary_bytes

_FACTORS = tuple(2 ** (step / 4) for step in range(1, 29))
"""Tried of misses and of the link, up and down: a quarter of an octave at a time, to a hundredfold."""
_EQUAL = 0.01
"""Of predictions this near the fastest, the one that takes the least memory is recommended."""
_CLOSE = 0.05
"""A lead below this is within the error of predictions."""


@dataclass(frozen=True)
class Candidate:
    """A predicted case."""

    case: Case
    prediction: Prediction


class Choice(Model):
    """What is recommended."""

    best: Prediction
    runner_up: Prediction | None
    """The fastest within the budget of another system, policy or row type."""
    reason: str
    changes: tuple[str, ...]
    """What would change the answer, a sentence each."""


def choose(candidates: Sequence[Candidate], costs: Costs, *, budget: int | None) -> Choice | None:
    """The fastest candidate within the budget, of equally fast ones the smallest; None: none fits.

    Caches that some batch exceeds are passed over: what goes past them is not in the model.

    Args:
        candidates: Predicted cases.
        costs: What they were predicted with; predicts them again as the machine or the stream changes.
        budget: Bytes of the device, the model included; None: whatever they take.
    """
    best = _winner(candidates, budget)
    if best is None:
        return None
    other = _winner([one for one in candidates if one.prediction.label != best.prediction.label], budget)
    return Choice(
        best=best.prediction,
        runner_up=None if other is None else other.prediction,
        reason=_reason(best.prediction, None if other is None else other.prediction, budget),
        changes=tuple(filter(None, _changes(candidates, best, costs, budget))),
    )


def _winner(candidates: Sequence[Candidate], budget: int | None) -> Candidate | None:
    """The smallest of those that are as good as the fastest."""
    fitting = [
        candidate
        for candidate in candidates
        if not candidate.prediction.overflows and (budget is None or candidate.prediction.device_bytes <= budget)
    ]
    if not fitting:
        return None
    bar = min(candidate.prediction.step_s for candidate in fitting) * (1 + _EQUAL)
    equal = [candidate for candidate in fitting if candidate.prediction.step_s <= bar]
    return min(equal, key=lambda one: (one.prediction.device_bytes, one.prediction.step_s))


def _reason(best: Prediction, other: Prediction | None, budget: int | None) -> str:
    """Which term decides."""
    within = "of all" if budget is None else f"within {binary_bytes(budget)}"
    if other is None:
        return f"it is the only one {within} that trains"
    lead = other.step_s / best.step_s - 1
    if abs(lead) < _EQUAL and binary_bytes(best.device_bytes) == binary_bytes(other.device_bytes):
        return f"none {within} is faster by a per cent or smaller; {other.label} equals it in both"
    if abs(lead) < _EQUAL:
        return (
            f"none {within} is faster by a per cent, and it takes the least memory: "
            f"{binary_bytes(best.device_bytes)} against {binary_bytes(other.device_bytes)} of {other.label}"
        )
    saved = {
        term: other.terms_s.get(term, 0.0) - best.terms_s.get(term, 0.0) for term in (*best.terms_s, *other.terms_s)
    }
    most = max(sorted(saved), key=lambda term: saved[term])
    close = " (within the error of predictions: measure both)" if lead < _CLOSE else ""
    return (
        f"it is the fastest {within}, {lead:.1%} ahead of {other.label}{close}, mostly by {most}: "
        f"{best.terms_s.get(most, 0.0) * 1e3:.2f} ms against {other.terms_s.get(most, 0.0) * 1e3:.2f} ms a step"
    )


def _changes(candidates: Sequence[Candidate], best: Candidate, costs: Costs, budget: int | None) -> list[str]:
    found = [
        _by_misses(candidates, best, costs, budget, more=True),
        _by_misses(candidates, best, costs, budget, more=False),
        _by_budget(candidates, best, budget),
        _by_less(candidates, best),
    ]
    if isinstance(costs, DescribedCosts):
        found += [_by_link(candidates, best, costs, budget, faster=faster) for faster in (False, True)]
    return found


def _by_misses(
    candidates: Sequence[Candidate], best: Candidate, costs: Costs, budget: int | None, *, more: bool
) -> str:
    """At which hit rate another one would be chosen, were the misses of all caches more or fewer by one factor."""
    for factor in _FACTORS:
        by = factor if more else 1 / factor
        again = [_again(one.case, one.prediction.counts.with_misses(by), costs) for one in candidates]
        winner = _winner(again, budget)
        if winner is None or winner.prediction.label == best.prediction.label:
            continue
        shown = best if best.case.caches else winner  # whose hit rate the sentence is about
        rates = [one.prediction.hit_rate for some in (candidates, again) for one in some if one.case is shown.case]
        before, after = rates[0], rates[-1]
        if before is None or after is None:
            continue
        side = "at most" if more else "at least"
        return f"with a hit rate of {shown.prediction.label} of {side} {after:.1%} (now {before:.1%}): {_named(winner)}"
    return ""


def _by_budget(candidates: Sequence[Candidate], best: Candidate, budget: int | None) -> str:
    """With how much more memory another one would be chosen."""
    if budget is None:
        return ""
    for size in sorted({one.prediction.device_bytes for one in candidates if one.prediction.device_bytes > budget}):
        winner = _winner(candidates, size)
        if winner is not None and winner.prediction.step_s < best.prediction.step_s * (1 - _EQUAL):
            return f"with {binary_bytes(size)} of device memory: {_named(winner)}"
    return ""


def _by_less(candidates: Sequence[Candidate], best: Candidate) -> str:
    """What is left with less memory than the recommended one takes."""
    taken = best.prediction.device_bytes
    winner = _winner(candidates, taken - 1)
    if winner is None:
        return f"with less than {binary_bytes(taken)} of device memory none of these fits"
    size = binary_bytes(winner.prediction.device_bytes)
    return f"with less than {binary_bytes(taken)} of device memory: {_named(winner)} in {size}"


def _by_link(
    candidates: Sequence[Candidate], best: Candidate, costs: DescribedCosts, budget: int | None, *, faster: bool
) -> str:
    """At which speed of the link another one would be chosen."""
    for factor in _FACTORS:
        by = factor if faster else 1 / factor
        links = ("link_to_device_gb_per_s", "link_to_host_gb_per_s")
        hardware = costs.hardware.model_copy(update={name: by * getattr(costs.hardware, name) for name in links})
        winner = _winner([_again(one.case, one.prediction.counts, costs.on(hardware)) for one in candidates], budget)
        if winner is not None and winner.prediction.label != best.prediction.label:
            side = "at least" if faster else "at most"
            return f"with a link of {side} {hardware.link_to_device_gb_per_s:.3g} GB/s: {_named(winner)}"
    return ""


def _again(case: Case, counts: Counts, costs: Costs) -> Candidate:
    return Candidate(case, predict(case, counts, costs))


def _named(candidate: Candidate) -> str:
    one = candidate.prediction
    cached = "" if one.cache_ratio is None else f", {one.cache_ratio:.2%} cached"
    return f"{one.label}{cached}, {one.samples_per_s:,.0f} samples/s"
