"""The process that calibrates: an order is its argument, progress and the result leave on standard output."""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from suite.advise.calibrate.calibrate import Calibration, KernelCosts, OnProgress, Order
from suite.advise.calibrate.cut import CutTrainer, DensePart
from suite.advise.calibrate.lines import costs_of
from suite.advise.calibrate.streams import STREAMS, CalibrationTables
from suite.advise.costs import Counts
from suite.advise.kernel import Kernel
from suite.advise.shape import Shape
from suite.records import environment
from suite.run.cell.training import load_initial_rows
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
from systems.registry import Variant
from workloads.batch import Batch

_FEW_SLOTS, _MANY_SLOTS = 0.05, 0.5
"""Of the caches of a calibration, as a share of the rows: few hits and many, so that distinct rows and misses vary
apart. No batch may exceed the smaller one: it holds one and a half batches at least."""
_BLOCK_STEPS = 3
"""Of one system on one stream, one after the other. The first is left out: it finds the processor's caches as another
system or stream left them, and training never does."""
_MOST_ROUNDS = 8
_LEAST_ROUNDS = 3
_PATIENCE_S = 60.0
"""Where steps are so slow that even the least rounds would take longer for one shape, fewer have to do."""
_LR = {"sgd": 1.0, "rowwise_adagrad": 0.01, "adagrad": 0.01, "adam": 0.001}


def measured(order: Order, *, on_progress: OnProgress) -> Calibration:
    """Calibrate in this process."""
    here = environment.capture(threads=torch.get_num_threads())
    costs: list[KernelCosts] = []
    refused: dict[str, str] = {}
    for shape in order.shapes:
        run = _ShapeRun(shape, order)
        costs += run.measured(on_progress)
        refused |= run.refused
    return Calibration(machine=here.gpu or here.cpu, costs=tuple(costs), refused=refused)


class _Subject(NamedTuple):
    """A live system; `kernel` is the number of its kernel."""

    kernel: int
    system: EmbeddingSystem
    trainer: CutTrainer


class _ShapeRun:
    """The calibration of one shape: all systems take turns, so that a slow spell falls on all alike.

    `refused` says why a kernel could not be built here, by kernel.
    """

    def __init__(self, shape: Shape, order: Order) -> None:
        self._shape = shape
        self._kernels = order.kernels
        self._seconds = order.seconds / len(order.shapes)
        self._tables = CalibrationTables(shape)
        kind = OptimizerKind(shape.optimizer)
        self._optimizer = SparseOptimizer(kind=kind, lr=_LR[kind])
        self._dense = DensePart(shape, self._tables.configs(), self._optimizer)
        self._frequencies = self._tables.frequencies()
        self._generator = np.random.default_rng(0)
        self._batches: list[Batch] = []  # of all streams in turn, shared, and made before any system is timed
        self._distinct: list[int] = []
        self.refused: dict[str, str] = {}

    def measured(self, on_progress: OnProgress) -> list[KernelCosts]:
        """Have the systems take turns, and draw the lines."""
        started = time.monotonic()
        subjects = [
            subject for number, kernel in enumerate(self._kernels) for subject in self._subjects(number, kernel)
        ]
        ahead = max((subject.system.look_ahead for subject in subjects), default=0)
        steps: list[dict[str, Any]] = []
        for number in range(_MOST_ROUNDS if subjects else 0):
            on_progress(f"{self._shape.tables} tables x {self._shape.batch_size:,} samples", number, _MOST_ROUNDS)
            self._make_batches((number + 1) * len(STREAMS) * _BLOCK_STEPS + ahead)
            for place, subject in enumerate(subjects):
                steps += [{"round": number, "system": place} | step for step in self._turn(subject, number)]
            expected = (time.monotonic() - started) * (number + 2) / (number + 1)
            if expected > (self._seconds if number + 1 >= _LEAST_ROUNDS else max(self._seconds, _PATIENCE_S)):
                break
        return costs_of(self._shape, self._kernels, pd.DataFrame(steps)) if steps else []

    def _make_batches(self, most: int) -> None:
        while len(self._batches) < most:
            stream = STREAMS[len(self._batches) // _BLOCK_STEPS % len(STREAMS)]
            batch = self._tables.batch(stream, self._generator)
            self._batches.append(batch)
            self._distinct.append(sum(ids.values().unique().numel() for ids in batch.features.to_dict().values()))

    def _fed(self) -> Iterator[Batch]:
        """The batches, more of which are made meanwhile."""
        at = 0
        while at < len(self._batches):
            yield self._batches[at]
            at += 1

    def _subjects(self, number: int, kernel: Kernel) -> Iterator[_Subject]:
        """A system of a kernel; with few slots and with many if it is a cache; none if it cannot be built here."""
        variant = Variant.parse(kernel.variant)
        system_class = registry.load(variant)
        least = min(_MANY_SLOTS, 1.5 * self._shape.batch_lookups / sum(self._tables.rows))
        ratios = (max(_FEW_SLOTS, least), max(_MANY_SLOTS, min(1.0, 2 * least)))
        for ratio in ratios if "policy" in system_class.variants else ratios[:1]:
            spec = SystemSpec(
                tables=self._tables.configs(kernel.row_type),
                optimizer=self._optimizer,
                device=torch.device(self._shape.device),
                budget=CacheRatio(ratio=ratio),
                batch_lookups=self._shape.batch_lookups,
                frequencies=self._frequencies,
                parameters=registry.resolved_parameters(variant, system_class),
            )
            answer = system_class.support(spec)
            if answer.verdict is not Verdict.YES:
                self.refused[str(kernel)] = answer.reason
                return
            system = system_class(spec)
            if any(tier is Tier.DISK for tier, _ in system.memory()):
                load_initial_rows(system, seed=0)  # reading a row that no file holds yet costs nothing
            yield _Subject(number, system, CutTrainer(system, self._dense, self._fed()))

    def _turn(self, subject: _Subject, number: int) -> Iterator[dict[str, Any]]:
        """A block of steps on every stream in round `number`, with their clocks and counts."""
        kernel, system, trainer = subject
        first = number * len(STREAMS) * _BLOCK_STEPS
        for at in range(first, first + len(STREAMS) * _BLOCK_STEPS):
            before = system.counters()
            clocks = trainer.step()
            if at % _BLOCK_STEPS:
                stream = STREAMS[at // _BLOCK_STEPS % len(STREAMS)].name
                step = {"kernel": kernel, "stream": stream, "ahead": system.look_ahead > 0}
                yield step | clocks | self._counted(at, before, system.counters()).model_dump()

    def _counted(self, at: int, before: Counters, after: Counters) -> Counts:
        def passed(name: str) -> int:
            return (getattr(after, name) or 0) - (getattr(before, name) or 0)

        return Counts(
            lookups=self._batches[at].features.values().numel(),
            distinct=self._distinct[at],
            misses=passed("unique_misses"),
            rows_fetched=passed("rows_fetched"),
            rows_written_back=passed("rows_written_back"),
        )


def main() -> None:
    """Carry out the order that the first argument holds."""
    order = Order.model_validate_json(sys.argv[1])
    warnings.filterwarnings("ignore")
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up among the messages
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def say(message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    def on_progress(what: str, done: int, total: int) -> None:
        say({"what": what, "done": done, "total": total})

    say(measured(order, on_progress=on_progress).model_dump(mode="json"))
    os._exit(0)  # a library's exit handlers must not spoil a finished calibration


if __name__ == "__main__":
    main()
