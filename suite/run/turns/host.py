"""The timing worker: several systems in one process, each with a DLRM of its own, all on the same batches."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, tee
from typing import NoReturn

import torch

from suite.records.record import Cell
from suite.run.cell.feed import PreloadedBatches, made_batches, open_workload
from suite.run.cell.host_budget import host_budget, set_allocator
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import Trainer, multiply_in
from suite.run.resources import drive_traffic
from suite.run.worker import Build, Reporter, Request, RunSteps, StepTiming
from systems.contract import EmbeddingSystem


def serve(first: Build, following: Iterator[Request], reporter: Reporter) -> NoReturn:
    """Serve requests until the parent closes standard input, which kills this process."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        systems = TimedSystems(first.cell, reporter, stack)
        for request in chain([first], following):
            match request:
                case Build():
                    reporter.phase(f"build {request.name}")
                    systems.build(request)
                    reporter.send(None)
                case RunSteps():
                    reporter.send(systems.turn(request))
    raise AssertionError  # requests do not end


class TimedSystems:
    """Systems of one setting, and the batches that they share, each made once for all builds."""

    def __init__(self, cell: Cell, reporter: Reporter, stack: ExitStack) -> None:
        self._stack = stack
        self._beat = reporter.beat
        set_allocator(keep_freed=cell.host_budget_bytes is None)
        multiply_in(tf32=cell.tf32)
        self._batches = made_batches(open_workload(cell).batch, pin_memory=cell.device == "cuda")
        self._setups: dict[str, CellSetup] = {}
        self._built: dict[str, tuple[EmbeddingSystem, Trainer]] = {}

    def build(self, asked: Build) -> None:
        """Build a system at full size with its DLRM, after freeing all if it is there already."""
        if asked.name in self._built:
            self._built.clear()
            gc.collect()  # frees the rows of systems in reference cycles
        if asked.name not in self._setups:
            self._setups[asked.name] = CellSetup.of(asked.cell)
        setup = self._setups[asked.name]
        budget = self._stack.enter_context(host_budget(setup))
        batches = self._batches
        if asked.cell.host_budget_bytes is None:  # else it is the only system, built once, and keeps no batch in memory
            batches, self._batches = tee(batches)
        feed = PreloadedBatches(batches, on_batch=self._beat)
        self._built[asked.name] = setup.build(feed, total_steps=asked.steps, beat=self._beat)
        if budget is not None:
            budget.apply(self._built[asked.name][0], beat=self._beat)

    def turn(self, asked: RunSteps) -> StepTiming:
        """Train a system some more steps; with rows on a drive, its time ends when all that it wrote is there.

        The untimed steps bear their share of the time that this takes at the end.
        """
        (system, trainer), on_drive = self._built[asked.name], self._setups[asked.name].on_drive
        system.reset_counters()
        before = drive_traffic()
        run = trainer.run(
            asked.steps,
            lead_steps=asked.lead_steps,
            on_step=lambda _: self._beat(),
            embeddings_only=asked.embeddings_only,
        )
        synced = time.perf_counter()
        if on_drive:
            os.sync()
        synced = time.perf_counter() - synced
        after, counted = drive_traffic(), system.counters()
        rows_read = counted.rows_fetched if counted.rows_from_drive is None else counted.rows_from_drive
        return StepTiming(
            seconds=run.duration_s + synced * asked.steps / (asked.lead_steps + asked.steps),
            wait_s=run.wait_s,
            loss=run.loss.hex(),
            read_bytes=after[0] - before[0],
            written_bytes=after[1] - before[1],
            rows_read=rows_read if on_drive else None,
        )
