"""The recommendation: the fastest case within the budget, the runner-up, why, and what would change it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from suite.advise.case import Case
from suite.advise.prediction import Costs, Prediction, predict
from suite.records.base import Model
from suite.tables.quantities import binary_bytes

_FACTORS = tuple(2 ** (step / 4) for step in range(1, 29))
"""Tried of misses, up and down: a quarter of an octave at a time, to a hundredfold."""
_EQUAL = 0.01
"""Of predictions this near the fastest, the one that takes the least memory is recommended."""
_CLOSE = 0.05
"""A lead below this is within the error of predictions."""


class Candidate(NamedTuple):
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
    """The fastest candidate within a budget in bytes, of equally fast ones the smallest; None: none fits.

    Caches that some batch exceeds are passed over: what goes past them is not in the model. `costs` predict the
    candidates again as the stream changes.
    """
    best = _winner(candidates, budget)
    if best is None:
        return None
    other = _winner([one for one in candidates if one.prediction.label != best.prediction.label], budget)
    runner_up = None if other is None else other.prediction
    return Choice(
        best=best.prediction,
        runner_up=runner_up,
        reason=_reason(best.prediction, runner_up, budget),
        changes=(*_by_misses(candidates, best, costs, budget), *_by_memory(candidates, best, budget)),
    )


def _winner(candidates: Sequence[Candidate], budget: int | None) -> Candidate | None:
    """The smallest of those that are as good as the fastest."""
    fitting = [one for one in candidates if one.prediction.fits(budget) and not one.prediction.overflows]
    bar = min((one.prediction.step_s for one in fitting), default=0.0) * (1 + _EQUAL)
    equal = [one for one in fitting if one.prediction.step_s <= bar]
    return min(equal, key=lambda one: (one.prediction.device_bytes, one.prediction.step_s), default=None)


def _reason(best: Prediction, other: Prediction | None, budget: int | None) -> str:
    """Which term decides."""
    within = "of all" if budget is None else f"within {binary_bytes(budget)}"
    if other is None:
        return f"it is the only one {within} that trains"
    lead = other.step_s / best.step_s - 1
    if abs(lead) < _EQUAL and binary_bytes(best.device_bytes) == binary_bytes(other.device_bytes):
        return f"none {within} is faster by a per cent or smaller; {other.label} equals it in both"
    if abs(lead) < _EQUAL and best.device_bytes <= other.device_bytes:
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


def _by_misses(candidates: Sequence[Candidate], best: Candidate, costs: Costs, budget: int | None) -> Iterator[str]:
    """At which hit rates another one would be chosen: misses of all caches, more or fewer by one factor."""

    def again(case: Case, before: Prediction, by: float) -> Prediction:
        return predict(case, before.counts.with_misses(by), costs)

    for side, factors in (("at most", _FACTORS), ("at least", [1 / factor for factor in _FACTORS])):
        for by in factors:
            winner = _winner([Candidate(case, again(case, before, by)) for case, before in candidates], budget)
            if winner is None or winner.prediction.label == best.prediction.label:
                continue
            shown = best.case if best.case.caches else winner.case  # whose hit rate the sentence is about
            before = next(prediction for case, prediction in candidates if case is shown)
            now, then = before.hit_rate, again(shown, before, by).hit_rate
            if now is not None and then is not None:
                rate = f"with a hit rate of {before.label} of {side} {then:.1%} (now {now:.1%})"
                yield f"{rate}: {_named(winner)}"
                break


def _by_memory(candidates: Sequence[Candidate], best: Candidate, budget: int | None) -> Iterator[str]:
    """With how much more memory another one would be chosen, and what is left with less than the best one takes."""
    taken = best.prediction.device_bytes
    larger = sorted({one.prediction.device_bytes for one in candidates if not one.prediction.fits(budget)})
    for size in larger:
        winner = _winner(candidates, size)
        if winner is not None and winner.prediction.step_s < best.prediction.step_s * (1 - _EQUAL):
            yield f"with {binary_bytes(size)} of device memory: {_named(winner)}"
            break
    smaller = _winner(candidates, taken - 1)
    if smaller is None:
        yield f"with less than {binary_bytes(taken)} of device memory none of these fits"
    else:
        left = binary_bytes(smaller.prediction.device_bytes)
        yield f"with less than {binary_bytes(taken)} of device memory: {_named(smaller)} in {left}"


def _named(candidate: Candidate) -> str:
    one = candidate.prediction
    cached = "" if one.cache_ratio is None else f", {one.cache_ratio:.2%} cached"
    return f"{one.label}{cached}, {one.samples_per_s:,.0f} samples/s"
