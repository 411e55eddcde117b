"""The process that calibrates: an order comes on standard input, progress and the result leave on standard output."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import numpy as np
import torch
from torchrec.types import DataType

from suite.advise import probes
from suite.advise.calibration import Calibration, KernelCosts, OnProgress, Order, Point, ShapeCosts
from suite.advise.calibration_streams import STREAMS, CalibrationTables, Stream
from suite.advise.costs import Counts, Line, fitted
from suite.advise.cut import MOVING, PLANNING, Clocks, CutTrainer, DensePart
from suite.advise.kernels import Kernel, RowType
from suite.advise.shape import Shape
from suite.records import environment
from suite.run.cell.training import load_initial_rows
from suite.simulate.traces.trace import Distinct
from systems import registry
from systems.contract import (
    CacheRatio,
    Counters,
    EmbeddingSystem,
    OptimizerKind,
    SparseOptimizer,
    SystemSpec,
    Tier,
    Verdict,
)
from systems.freq_cache.planner.planner import Ids
from systems.registry import Variant
from workloads.batch import Batch

_FEW_SLOTS, _MANY_SLOTS = 0.05, 0.5
"""Of the caches of a calibration, as a share of the rows: few hits and many, so that distinct rows and misses vary
apart. No batch may exceed the smaller one: it holds one and a half batches at least."""
_MOST_ROUNDS = 8
_LEAST_ROUNDS = 3
_SETTLING_ROUNDS = 1
"""Left out, if more follow: kernels are loaded, threads started and caches filled."""
_PATIENCE_S = 60.0
"""Where steps are so slow that even the least rounds would take longer for one shape, fewer have to do."""
BLOCK_STEPS = 3
"""Of one system on one stream, one after the other. The first is left out: it finds the processor's caches as another
system or stream left them, and training never does."""
_LR = {"sgd": 1.0, "rowwise_adagrad": 0.01, "adagrad": 0.01, "adam": 0.001}
_TABLE_TYPES = {RowType.FP32: DataType.FP32, RowType.FP16: DataType.FP16}


def measured(order: Order, *, on_progress: OnProgress) -> Calibration:
    """Calibrate in this process."""
    started = time.monotonic()
    device = torch.device(order.shapes[0].device)
    on_progress("machine", 0, 1)
    found = probes.measure(device)
    here = environment.capture(threads=torch.get_num_threads())
    shapes = tuple(
        _ShapeRun(shape, order.kernels, seconds=order.seconds / len(order.shapes)).run(on_progress)
        for shape in order.shapes
    )
    return Calibration(
        machine=here.machine,
        cpu=here.cpu,
        gpu=here.gpu,
        threads=here.threads,
        packages=here.packages,
        seconds=time.monotonic() - started,
        probes=found,
        shapes=shapes,
    )


@dataclass
class _Subject:
    """A live system with what was measured of it."""

    kernel: Kernel
    ratio: float
    system: EmbeddingSystem
    trainer: CutTrainer
    clocks: dict[str, list[Clocks]] = field(default_factory=lambda: {stream.name: [] for stream in STREAMS})
    counts: dict[str, list[Counts]] = field(default_factory=lambda: {stream.name: [] for stream in STREAMS})

    @property
    def looks_ahead(self) -> bool:
        return self.system.look_ahead > 0


class _Sequence:
    """Batches of all streams in turn, shared by all systems and made before any of them is timed."""

    def __init__(self, tables: CalibrationTables) -> None:
        self._tables = tables
        self._generator = np.random.default_rng(0)
        self._made: list[Batch] = []

    def make(self, count: int) -> None:
        """Have so many batches."""
        while len(self._made) < count:
            stream = STREAMS[len(self._made) // BLOCK_STEPS % len(STREAMS)]
            self._made.append(self._tables.batch(stream, self._generator))

    def __iter__(self) -> Iterator[Batch]:
        at = 0
        while at < len(self._made):
            yield self._made[at]
            at += 1


class _ShapeRun:
    """The calibration of one shape: all systems take turns, so that a slow spell falls on all alike."""

    def __init__(self, shape: Shape, kernels: Sequence[Kernel], *, seconds: float) -> None:
        self._shape = shape
        self._kernels = kernels
        self._seconds = seconds
        self._tables = {row_type: CalibrationTables(shape, row_type=_TABLE_TYPES[row_type]) for row_type in RowType}
        plain = self._tables[RowType.FP32]
        kind = OptimizerKind(shape.optimizer)
        self._optimizer = SparseOptimizer(kind=kind, lr=_LR[kind])
        self._dense = DensePart(shape, plain.tables, self._optimizer)
        self._sequence = _Sequence(plain)
        self._frequencies = plain.frequencies()
        sizes = np.array(plain.rows, np.int64)
        self._starts = sizes.cumsum() - sizes
        self._distinct = Distinct(sum(plain.rows))
        self._refused: dict[str, str] = {}

    def run(self, on_progress: OnProgress) -> ShapeCosts:
        """Measure, and draw the lines."""
        started = time.monotonic()
        subjects = [subject for kernel in self._kernels for subject in self._built(kernel)]
        ahead = max((subject.system.look_ahead for subject in subjects), default=0)
        rounds = 0
        while rounds < _MOST_ROUNDS:
            on_progress(f"{self._shape.tables} tables x {self._shape.batch_size:,} samples", rounds, _MOST_ROUNDS)
            self._sequence.make((rounds + 1) * len(STREAMS) * BLOCK_STEPS + ahead)
            for subject in subjects:
                self._turn(subject)
            rounds += 1
            expected = (time.monotonic() - started) * (rounds + 1) / rounds
            if expected > (self._seconds if rounds >= _LEAST_ROUNDS else max(self._seconds, _PATIENCE_S)):
                break
        return self._costs(subjects, rounds=rounds)

    def _built(self, kernel: Kernel) -> list[_Subject]:
        variant = Variant.parse(kernel.variant)
        try:
            system_class = registry.load(variant)
        except ImportError as error:
            self._refused[str(kernel)] = f"cannot import {error.name}: run make setup"
            return []
        rows = sum(self._tables[kernel.row_type].rows)
        least = min(_MANY_SLOTS, 1.5 * self._shape.batch_lookups / rows)
        ratios = (max(_FEW_SLOTS, least), max(_MANY_SLOTS, min(1.0, 2 * least)))
        made = []
        for ratio in ratios if "policy" in system_class.variants else ratios[:1]:
            spec = SystemSpec(
                tables=self._tables[kernel.row_type].tables,
                optimizer=self._optimizer,
                device=torch.device(self._shape.device),
                budget=CacheRatio(ratio=ratio),
                batch_lookups=self._shape.batch_lookups,
                frequencies=self._frequencies,
                parameters=registry.resolved_parameters(variant, system_class),
            )
            answer = system_class.support(spec)
            if answer.verdict is not Verdict.YES:
                self._refused[str(kernel)] = answer.reason
                return []
            system = system_class(spec)
            if any(tier is Tier.DISK for tier, _ in system.memory()):
                load_initial_rows(system, seed=0)  # reading a row that no file holds yet costs nothing
            trainer = CutTrainer(system, self._dense, iter(self._sequence))
            made.append(_Subject(kernel, ratio, system, trainer))
        return made

    def _turn(self, subject: _Subject) -> None:
        """A block of steps on every stream."""
        for stream in STREAMS:
            for step in range(BLOCK_STEPS):
                before = subject.system.counters()
                batch, clocks = subject.trainer.step()
                if step:
                    subject.clocks[stream.name].append(clocks)
                    subject.counts[stream.name].append(self._counted(batch, before, subject.system.counters()))

    def _counted(self, batch: Batch, before: Counters, after: Counters) -> Counts:
        features = batch.features
        ends = features.offsets()[features.stride() :: features.stride()].cpu().numpy()
        rows, _ = self._distinct.of(Ids(features.values().cpu().numpy(), ends, self._starts))
        return Counts(
            lookups=features.values().numel(),
            distinct=rows.size,
            misses=_difference(before.unique_misses, after.unique_misses),
            rows_fetched=_difference(before.rows_fetched, after.rows_fetched),
            rows_written_back=_difference(before.rows_written_back, after.rows_written_back),
        )

    def _costs(self, subjects: Sequence[_Subject], *, rounds: int) -> ShapeCosts:
        settling = min(_SETTLING_ROUNDS, rounds - 1) * (BLOCK_STEPS - 1)
        dense_s = {
            stream.name: typical(
                clocks.dense_s
                for subject in subjects
                if not subject.looks_ahead
                for clocks in subject.clocks[stream.name][settling:]
            )
            for stream in STREAMS
        }
        points = [
            _point(subject, stream, dense_s[stream.name], settling=settling)
            for subject in subjects
            for stream in STREAMS
        ]
        kernels = dict.fromkeys(subject.kernel for subject in subjects)
        return ShapeCosts(
            shape=self._shape,
            dense_s=_of_whole_batches(dense_s),
            kernels=tuple(
                _lines(kernel, [p for p in points if p.kernel == kernel], dense_s=_of_whole_batches(dense_s))
                for kernel in kernels
            ),
            refused=self._refused,
            points=tuple(points),
            rounds=rounds,
        )


def _of_whole_batches(seconds: Mapping[str, float]) -> float:
    return mean(seconds[stream.name] for stream in STREAMS if stream.share == 1)


def typical(seconds: Iterable[float]) -> float:
    """The median over blocks of their mean step, as what is predicted is the median over windows of steps."""
    found = list(seconds)
    steps = BLOCK_STEPS - 1
    return median(mean(found[start : start + steps]) for start in range(0, len(found), steps))


def _difference(before: int | None, after: int | None) -> int:
    return (after or 0) - (before or 0)


def _point(subject: _Subject, stream: Stream, dense_s: float, *, settling: int) -> Point:
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
    return Point(
        kernel=subject.kernel,
        stream=stream.name,
        cache_ratio=subject.ratio,
        lookups=mean(c.lookups for c in counts),
        distinct=mean(c.distinct for c in counts),
        misses=mean(c.misses for c in counts),
        moved=mean(c.moved for c in counts),
        seconds=seconds,
    )


_OVER = {
    "lookup": ("lookups", "distinct"),
    "update": ("lookups", "distinct"),
    "planning": ("lookups", "distinct", "misses"),
    "moving": ("moved",),
    "beside": ("lookups", "distinct", "misses"),
    "slowed": ("lookups", "distinct", "misses"),
}
"""What each cost may depend on."""


def _lines(kernel: Kernel, points: Sequence[Point], *, dense_s: float) -> KernelCosts:
    """The costs of a kernel; `dense_s` is what the dense part takes where nothing goes on beside it."""
    waits = "beside" in points[0].seconds
    whole = {stream.name for stream in STREAMS if stream.share == 1}
    own_s = dense_s if waits else mean(point.seconds["dense"] for point in points if point.stream in whole)

    def line(cost: str) -> Line:
        over = _OVER[cost]
        seamless = not any(point.seconds["moving"] for point in points)
        if cost == "lookup" and (seamless or waits):
            over = (*over, "misses")  # whatever fetching costs is in there
        found = [(_counts(point), point.seconds[cost]) for point in points if cost in point.seconds]
        return fitted(found, over=over) if any(value for _, value in found) else Line()

    return KernelCosts(kernel=kernel, dense_s=own_s, **{cost: line(cost) for cost in _OVER})


def _counts(point: Point) -> Counts:
    return Counts(lookups=point.lookups, distinct=point.distinct, misses=point.misses, rows_fetched=point.moved)


def main() -> None:
    """Read an order, and answer it."""
    order = Order.model_validate_json(sys.stdin.readline())
    warnings.filterwarnings("ignore")
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up among the messages
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    def on_progress(what: str, done: int, total: int) -> None:
        say({"what": what, "done": done, "total": total})

    say({"calibration": measured(order, on_progress=on_progress).model_dump(mode="json")})
    sys.stdout.flush()
    os._exit(0)  # a library's exit handlers must not spoil a finished calibration


if __name__ == "__main__":
    main()
