"""From the clocks of steps to costs: a typical step of each system on each stream, and a line through these points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from suite.advise.calibrate.calibration import Kernel, KernelCosts, ShapeCosts
from suite.advise.calibrate.cut import MOVING, PLANNING, Clocks, CutTrainer
from suite.advise.calibrate.streams import STREAMS, Stream
from suite.advise.costs import Counts, Line, fitted
from suite.advise.shape import Shape
from systems.contract import EmbeddingSystem

_SETTLING_ROUNDS = 1
"""Left out, if more follow: kernels are loaded, threads started and caches filled."""
BLOCK_STEPS = 3
"""Of one system on one stream, one after the other. The first is left out: it finds the processor's caches as another
system or stream left them, and training never does."""
_WHOLE = tuple(stream.name for stream in STREAMS if stream.share == 1)
"""Streams of whole batches."""


@dataclass
class Subject:
    """A live system with what was measured of it."""

    kernel: Kernel
    system: EmbeddingSystem
    trainer: CutTrainer
    clocks: dict[str, list[Clocks]] = field(default_factory=lambda: {stream.name: [] for stream in STREAMS})
    counts: dict[str, list[Counts]] = field(default_factory=lambda: {stream.name: [] for stream in STREAMS})

    @property
    def looks_ahead(self) -> bool:
        """Whether batches are announced to it before they are looked up."""
        return self.system.look_ahead > 0


@dataclass(frozen=True)
class _Point:
    """One point that lines are drawn through: mean counts, and seconds by cost, typical of the rounds."""

    kernel: Kernel
    stream: str
    counts: Counts
    seconds: dict[str, float]


def costs_of(shape: Shape, subjects: Sequence[Subject], *, refused: dict[str, str], rounds: int) -> ShapeCosts:
    """The costs of a step of one shape, from what so many rounds measured of its subjects."""
    settling = min(_SETTLING_ROUNDS, rounds - 1) * (BLOCK_STEPS - 1)
    undisturbed = [subject for subject in subjects if not subject.looks_ahead]
    dense_s = {
        stream.name: typical(one.dense_s for subject in undisturbed for one in subject.clocks[stream.name][settling:])
        for stream in STREAMS
    }
    points = [
        _point(subject, stream, dense_s[stream.name], settling=settling) for subject in subjects for stream in STREAMS
    ]
    whole_s = mean(dense_s[name] for name in _WHOLE)
    kernels = dict.fromkeys(subject.kernel for subject in subjects)
    return ShapeCosts(
        shape=shape,
        kernels=tuple(_lines(kernel, [p for p in points if p.kernel == kernel], dense_s=whole_s) for kernel in kernels),
        refused=refused,
    )


def typical(seconds: Iterable[float]) -> float:
    """The median over blocks of their mean step, as what is predicted is the median over turns."""
    found = list(seconds)
    steps = BLOCK_STEPS - 1
    return median(mean(found[start : start + steps]) for start in range(0, len(found), steps))


def _point(subject: Subject, stream: Stream, dense_s: float, *, settling: int) -> _Point:
    """What a system typically took and counted on one stream."""
    clocks = subject.clocks[stream.name][settling:]
    counts = subject.counts[stream.name][settling:]
    planning = [c.stages_s.get(PLANNING, 0.0) for c in clocks]
    moving = [c.stages_s.get(MOVING, 0.0) for c in clocks]
    here = [0.0] * len(clocks) if subject.looks_ahead else planning  # of the forward pass
    seconds = {
        "lookup": typical(c.lookup_s - p - m for c, p, m in zip(clocks, here, moving, strict=True)),
        "dense": typical(c.dense_s for c in clocks),
        "update": typical(c.update_s for c in clocks),
        "planning": typical(here),
        "moving": typical(moving),
    }
    if subject.looks_ahead:
        seconds["beside"] = typical(planning)
        seconds["slowed"] = max(0.0, typical(c.announce_s + c.dense_s for c in clocks) - dense_s)
    averages = {name: mean(getattr(one, name) for one in counts) for name in Counts.model_fields}
    return _Point(subject.kernel, stream.name, Counts(**averages), seconds)


_OVER = {
    "lookup": ("lookups", "distinct"),
    "update": ("lookups", "distinct"),
    "planning": ("lookups", "distinct", "misses"),
    "moving": ("moved",),
    "beside": ("lookups", "distinct", "misses"),
    "slowed": ("lookups", "distinct", "misses"),
}
"""What each cost may depend on."""


def _lines(kernel: Kernel, points: Sequence[_Point], *, dense_s: float) -> KernelCosts:
    """The costs of a kernel; `dense_s` is what the dense part takes where nothing goes on beside it."""
    waits = "beside" in points[0].seconds
    own_s = dense_s if waits else mean(point.seconds["dense"] for point in points if point.stream in _WHOLE)
    seamless = not any(point.seconds["moving"] for point in points)

    def line(cost: str) -> Line:
        over = _OVER[cost]
        if cost == "lookup" and (seamless or waits):
            over = (*over, "misses")  # whatever fetching costs is in there
        found = [(point.counts, point.seconds[cost]) for point in points if cost in point.seconds]
        return fitted(found, over=over) if any(value for _, value in found) else Line()

    return KernelCosts(kernel=kernel, dense_s=own_s, **{cost: line(cost) for cost in _OVER})
