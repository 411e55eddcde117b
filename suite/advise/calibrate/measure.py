"""The process that calibrates: an order is its argument, progress and the result leave on standard output."""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch

from suite.advise.calibrate.calibrate import Calibration, KernelCosts, OnProgress, Order
from suite.advise.calibrate.cut import CutTrainer, DensePart
from suite.advise.calibrate.fits import costs_of
from suite.advise.calibrate.streams import STREAMS, CalibrationTables, Stream
from suite.advise.case import Weighed
from suite.advise.shape import Shape
from suite.records import environment
from suite.run.cell.training import load_initial_rows, multiply_in
from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, SparseOptimizer, SystemSpec, Tier, Verdict
from systems.registry import Variant
from workloads.batch import Batch

_FEW_SLOTS, _MANY_SLOTS = 0.05, 0.5
"""Of the caches of a calibration, as a share of the rows: few hits and many, so that distinct rows and misses vary
apart. No batch may exceed the smaller one, so both are larger where a batch may have that many distinct rows."""
_MOST_NEEDED = 0.9
"""Share of the rows that a batch may have: beyond it even the smaller cache would miss next to nothing."""
_BLOCK_STEPS = 3
"""Of one system on one stream, one after the other. The first is left out: it finds the processor's caches as another
system or stream left them, and training never does."""
_MOST_ROUNDS = 8
_LEAST_ROUNDS = 3
_PATIENCE_S = 60.0
"""Where steps are so slow that even the least rounds would take longer for one shape, fewer have to do."""
_COUNTERS = {"misses": "unique_misses", "rows_fetched": "rows_fetched", "rows_written_back": "rows_written_back"}
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
        self._counts: list[dict[str, int]] = []
        self.refused: dict[str, str] = {}

    def measured(self, on_progress: OnProgress) -> list[KernelCosts]:
        """Have the systems take turns, and draw the lines."""
        multiply_in(tf32=self._shape.tf32)
        started = time.monotonic()
        trainers = [(kernel.label, trainer) for kernel in self._kernels for trainer in self._trainers(kernel)]
        ahead = max((trainer.system.look_ahead for _, trainer in trainers), default=0)
        steps: list[dict[str, Any]] = []
        for number in range(_MOST_ROUNDS if trainers else 0):
            on_progress(f"{self._shape.tables} tables x {self._shape.batch_size:,} samples", number, _MOST_ROUNDS)
            self._make_batches((number + 1) * len(STREAMS) * _BLOCK_STEPS + ahead)
            for place, (kernel, trainer) in enumerate(trainers):
                where = {"round": number, "kernel": kernel, "system": place, "ahead": trainer.system.look_ahead > 0}
                steps += [where | step for step in self._turn(trainer, number)]
            expected = (time.monotonic() - started) * (number + 2) / (number + 1)
            if expected > (self._seconds if number + 1 >= _LEAST_ROUNDS else max(self._seconds, _PATIENCE_S)):
                break
        for place, (_, trainer) in enumerate(trainers):
            if trainer.system.slots and not trainer.system.counters().steps:
                misses = self._misses(trainer, number + 1)
                for step in steps:
                    step["misses"] = misses[step["stream"]] if step["system"] == place else step["misses"]
        return costs_of(self._shape, self._kernels, pd.DataFrame(steps)) if steps else []

    def _make_batches(self, most: int) -> None:
        while len(self._batches) < most:
            batch = self._tables.batch(_stream(len(self._batches)), self._generator)
            distinct = sum(ids.values().unique().numel() for ids in batch.features.to_dict().values())
            self._batches.append(batch)
            self._counts.append({"lookups": batch.features.values().numel(), "distinct": distinct})

    def _trainers(self, kernel: Weighed) -> Iterator[CutTrainer]:
        """A system of a kernel; with few slots and with many if it is a cache; none if it cannot be built here."""
        variant = Variant.parse(kernel.system)
        system_class = registry.load(variant)
        rows, ids_of_table = self._tables.rows, self._shape.batch_size * self._shape.hotness
        most = sum(min(size, ids_of_table) for size in rows) / sum(rows)
        if system_class.slots is not EmbeddingSystem.slots and most > _MOST_NEEDED:
            self.refused[kernel.label] = f"a batch may have {most:.0%} of the rows that it would be tried on"
            return
        least = max(most, min(_MANY_SLOTS, 1.5 * self._shape.batch_lookups / sum(rows)))
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
                self.refused[kernel.label] = answer.reason
                return
            system = system_class(spec)
            if any(tier is Tier.DISK for tier, _ in system.memory()):
                load_initial_rows(system, seed=0)  # reading a row that no file holds yet costs nothing
            yield CutTrainer(system, self._dense, iter(self._batches))

    def _turn(self, trainer: CutTrainer, number: int) -> Iterator[dict[str, Any]]:
        """A block of steps on every stream in round `number`, with their clocks and counts."""
        first = number * len(STREAMS) * _BLOCK_STEPS
        for at in range(first, first + len(STREAMS) * _BLOCK_STEPS):
            before = trainer.system.counters()
            clocks = trainer.step()
            after = trainer.system.counters()
            if at % _BLOCK_STEPS:
                passed = {
                    name: (getattr(after, counter) or 0) - (getattr(before, counter) or 0)
                    for name, counter in _COUNTERS.items()
                }
                yield {"stream": _stream(at).name} | clocks | self._counts[at] | passed

    def _misses(self, trainer: CutTrainer, number: int) -> dict[str, float]:
        """Misses of a batch by stream, where counting costs time and was off: of round `number`, which is not timed.

        A system that fills its cache ahead counts a batch when it is announced.
        """
        system, steps = trainer.system, len(STREAMS) * _BLOCK_STEPS
        first = number * steps + system.look_ahead
        self._make_batches(first + steps)
        system.count_traffic(True)
        found = dict.fromkeys((stream.name for stream in STREAMS), 0.0)
        before = 0
        for at in range(first, first + steps):
            trainer.step()
            after = system.counters().unique_misses or 0
            if at % _BLOCK_STEPS:
                found[_stream(at).name] += (after - before) / (_BLOCK_STEPS - 1)
            before = after
        return found


def _stream(at: int) -> Stream:
    """That of a batch: a block of each in turn."""
    return STREAMS[at // _BLOCK_STEPS % len(STREAMS)]


def main() -> None:
    """Carry out the order that the first argument holds."""
    order = Order.model_validate_json(sys.argv[1])
    warnings.filterwarnings("ignore")
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not end up among the messages
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def on_progress(what: str, done: int, total: int) -> None:
        out.write(json.dumps([what, done, total]) + "\n")

    out.write(measured(order, on_progress=on_progress).model_dump_json() + "\n")
    os._exit(0)  # a library's exit handlers must not spoil a finished calibration


if __name__ == "__main__":
    main()
