"""The process that calibrates: an order comes on standard input, progress and the result leave on standard output."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from suite.advise.calibrate.calibrate import OnProgress, Order
from suite.advise.calibrate.calibration import Calibration, Kernel, RowType, ShapeCosts
from suite.advise.calibrate.cut import CutTrainer, DensePart
from suite.advise.calibrate.lines import BLOCK_STEPS, Subject, costs_of
from suite.advise.calibrate.streams import STREAMS, CalibrationTables
from suite.advise.costs import Counts
from suite.advise.shape import Shape
from suite.records import environment
from suite.run.cell.training import load_initial_rows
from suite.simulate.traces.trace import Distinct
from systems import registry
from systems.contract import (
    CacheRatio,
    Counters,
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
_PATIENCE_S = 60.0
"""Where steps are so slow that even the least rounds would take longer for one shape, fewer have to do."""
_LR = {"sgd": 1.0, "rowwise_adagrad": 0.01, "adagrad": 0.01, "adam": 0.001}


def measured(order: Order, *, on_progress: OnProgress) -> Calibration:
    """Calibrate in this process."""
    here = environment.capture(threads=torch.get_num_threads())
    shapes = tuple(
        _ShapeRun(shape, order.kernels, seconds=order.seconds / len(order.shapes)).run(on_progress)
        for shape in order.shapes
    )
    return Calibration(cpu=here.cpu, gpu=here.gpu, shapes=shapes)


def _growing(made: list[Batch]) -> Iterator[Batch]:
    """Batches of a list that grows meanwhile."""
    at = 0
    while at < len(made):
        yield made[at]
        at += 1


class _ShapeRun:
    """The calibration of one shape: all systems take turns, so that a slow spell falls on all alike."""

    def __init__(self, shape: Shape, kernels: Sequence[Kernel], *, seconds: float) -> None:
        self._shape = shape
        self._kernels = kernels
        self._seconds = seconds
        self._tables = {row_type: CalibrationTables(shape, row_type=row_type) for row_type in RowType}
        plain = self._tables[RowType.FP32]
        kind = OptimizerKind(shape.optimizer)
        self._optimizer = SparseOptimizer(kind=kind, lr=_LR[kind])
        self._dense = DensePart(shape, plain.tables, self._optimizer)
        self._batches: list[Batch] = []  # of all streams in turn, shared, and made before any system is timed
        self._generator = np.random.default_rng(0)
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
            self._make_batches((rounds + 1) * len(STREAMS) * BLOCK_STEPS + ahead)
            for subject in subjects:
                self._turn(subject)
            rounds += 1
            expected = (time.monotonic() - started) * (rounds + 1) / rounds
            if expected > (self._seconds if rounds >= _LEAST_ROUNDS else max(self._seconds, _PATIENCE_S)):
                break
        return costs_of(self._shape, subjects, refused=self._refused, rounds=rounds)

    def _make_batches(self, count: int) -> None:
        while len(self._batches) < count:
            stream = STREAMS[len(self._batches) // BLOCK_STEPS % len(STREAMS)]
            self._batches.append(self._tables[RowType.FP32].batch(stream, self._generator))

    def _built(self, kernel: Kernel) -> list[Subject]:
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
            trainer = CutTrainer(system, self._dense, _growing(self._batches))
            made.append(Subject(kernel, system, trainer))
        return made

    def _turn(self, subject: Subject) -> None:
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
            misses=(after.unique_misses or 0) - (before.unique_misses or 0),
            rows_fetched=(after.rows_fetched or 0) - (before.rows_fetched or 0),
            rows_written_back=(after.rows_written_back or 0) - (before.rows_written_back or 0),
        )


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
