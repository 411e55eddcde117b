"""From the clocks of steps to costs: a typical step of each system on each stream, and a line through these points."""

from collections.abc import Sequence

import pandas as pd

from suite.advise.calibrate.calibrate import KernelCosts
from suite.advise.calibrate.streams import STREAMS
from suite.advise.case import Weighed
from suite.advise.costs import Counts, Line
from suite.advise.shape import Shape

_COUNTED = ["lookups", "distinct", "misses", "rows_fetched", "rows_written_back"]
"""Of `Counts`."""
_PLACE = ["kernel", "system", "stream"]
_WHOLE = [stream.name for stream in STREAMS if stream.share == 1]
"""Streams of whole batches."""
_OVER = {
    "lookup": ("lookups", "distinct"),
    "update": ("lookups", "distinct"),
    "planning": ("lookups", "distinct", "misses"),
    "moving": ("moved",),
    "beside": ("lookups", "distinct", "misses"),
}
"""What each cost may depend on."""
_CALLED = ("lookup", "update")
"""Whose cost whatever the ids are has a name of its own."""


def costs_of(shape: Shape, kernels: Sequence[Weighed], steps: pd.DataFrame) -> list[KernelCosts]:
    """The costs of kernels in steps of one shape.

    Args:
        shape: Of the steps.
        kernels: Those whose steps were taken, or that could not be built.
        steps: A row per step: the label of its `kernel`, numbers of its `system` and `round`, its `stream`, whether the
            system looks `ahead`, its clocks (`CutTrainer.step`) and what it counted (`Counts`).
    """
    points = typical(steps)
    undisturbed = points[~points["ahead"]] if not points["ahead"].all() else points
    dense_s = undisturbed.groupby("stream")["dense"].median()
    slowed = (points["alone"] - points["stream"].map(dense_s)).clip(lower=0) * points["ahead"]
    points["planning"] += slowed  # what training loses to the thread that plans
    points["beside"] = (points["beside"] - slowed).clip(lower=0)
    return [
        _lines(shape, kernel, points[points["kernel"] == kernel.label], dense_s=float(dense_s[_WHOLE].mean()))
        for kernel in kernels
        if (points["kernel"] == kernel.label).any()
    ]


def typical(steps: pd.DataFrame) -> pd.DataFrame:
    """A row per system and stream: mean counts, and seconds as the median over blocks of their mean step.

    What is predicted is the median over turns, too. The first round is left out if more follow: kernels are loaded,
    threads started and caches filled.
    """
    steps = steps[steps["round"] >= min(1, steps["round"].max())]
    here = steps["planning_s"].where(~steps["ahead"], 0.0)  # in the forward pass, not on a thread beside
    clocks = pd.DataFrame(
        {
            "lookup": steps["lookup_s"] - here - steps["moving_s"],
            "dense": steps["dense_s"],
            "update": steps["update_s"],
            "planning": here,
            "moving": steps["moving_s"],
            "beside": steps["planning_s"] - here,
            "alone": steps["announce_s"] + steps["dense_s"],
        }
    )
    blocks = steps[[*_PLACE, "round", "ahead", *_COUNTED]].join(clocks).groupby([*_PLACE, "round"]).mean()
    how = dict.fromkeys(clocks, "median") | dict.fromkeys(_COUNTED, "mean") | {"ahead": "max"}
    return blocks.groupby(_PLACE).agg(how).astype({"ahead": bool}).reset_index()


def _lines(shape: Shape, kernel: Weighed, points: pd.DataFrame, *, dense_s: float) -> KernelCosts:
    """The costs of a kernel; `dense_s` is what the dense part takes where nothing goes on beside it."""
    ahead = bool(points["ahead"].any())
    counts = [Counts(**values) for values in points[_COUNTED].to_dict("records")]
    own_s = dense_s if ahead else float(points[points["stream"].isin(_WHOLE)]["dense"].mean())
    seamless = not points["moving"].any()

    def line(cost: str) -> Line:
        over = _OVER[cost]
        if cost == "lookup" and (seamless or ahead):
            over = (*over, "misses")  # whatever fetching costs is in there
        seconds = points[cost].tolist()
        return Line.through(counts, seconds, over=over) if any(seconds) else Line()

    lines = {cost: line(cost) for cost in _OVER}
    hidden = {"planning": lines.pop("beside")}
    calls_s = sum(lines[cost].fixed_s for cost in _CALLED)
    whatever = {"dense": Line(fixed_s=own_s), "calls": Line(fixed_s=calls_s)}
    varying = {cost: Line(per_s=lines[cost].per_s) for cost in _CALLED}
    return KernelCosts(shape=shape, kernel=kernel, exposed=whatever | lines | varying, hidden=hidden)
