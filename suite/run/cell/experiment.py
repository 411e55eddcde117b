"""One cell, top to bottom: support, verify, build, train, count, evaluate, replay. `suite.run.turns` times speed."""

import gc
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path

import torch

from suite.records.measured import DriveSpeed, Optimum
from suite.records.record import Cell, Measurement, Status, Verification
from suite.records.store import StoreError
from suite.run import memory_probes
from suite.run.cell.feed import FeedPlan, open_feed, plan_feed, usable_cores
from suite.run.cell.host_budget import drive_of, host_budget
from suite.run.cell.measurement import Progressive, memory_of, quality_of, timing_of, traffic_of
from suite.run.cell.reporter import Reporter
from suite.run.cell.sampled_rows import SampledRows
from suite.run.cell.setup import CellSetup
from suite.run.cell.stream import open_workload
from suite.run.cell.training import TOGETHER, Run, Trainer, multiply_in
from suite.run.cell.verify import verify
from suite.run.messages import CellResult
from systems import registry
from systems.contract import EmbeddingSystem, Verdict


def run_cell(cell: Cell, reporter: Reporter, *, known: Sequence[Optimum] = (), rows: Path | None = None) -> CellResult:
    """Run one cell in this process; `known` optima and the file of rows are those of `RunCell`."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    reporter.phase("support")
    setup = CellSetup.of(cell)
    support = setup.support()
    if support.verdict is not Verdict.YES:
        return CellResult(status=Status(support.verdict), reason=support.reason)
    verification: Verification | None = None
    if registry.Variant.parse(cell.system).name in registry.CONTROLS:
        reporter.notes.append("a control, not a system: not verified, not ranked")
    else:
        reporter.phase("verify")
        verification = verify(
            setup.system_class, spec=setup.spec, workload=setup.workload, seed=cell.round_seed, beat=reporter.beat
        )
        if not verification.passed:
            return CellResult(status=Status.WRONG_ANSWER, reason=first_failure(verification), verification=verification)
    if not memory_probes.reset_peaks(setup.spec.device):
        reporter.notes.append("the peak of host memory could not be reset and includes imports and verification")
    measurement, slots = _train(setup, reporter, None if verification is None else rows)
    optimum: Optimum | None = None
    if slots and measurement.traffic is not None and measurement.traffic.unique_misses is not None:
        # imported only now: the simulators' modules would count as memory of the system
        from suite.run.cell.optimum import optimum_of
        from suite.simulate.models.model import CannotReplay

        reporter.phase("replay")
        gc.collect()  # frees the rows of a system in a reference cycle
        try:
            optimum = optimum_of(setup, slots, known=known, beat=reporter.beat)
        except (CannotReplay, MemoryError) as error:
            reporter.notes.append(f"no optimum: {str(error) or 'too little host memory to replay the steps'}")
    notes = tuple(reporter.notes)
    return CellResult(
        status=Status.OK, verification=verification, measurement=measurement, optimum=optimum, notes=notes
    )


def _train(setup: CellSetup, reporter: Reporter, rows: Path | None) -> tuple[Measurement, int]:
    """Build the system at full size and measure it. Returns also the slots of its cache."""
    cell, spec = setup.cell, setup.spec
    speed: DriveSpeed | None = None
    if setup.on_drive:
        reporter.phase("drive")
        speed = drive_of(setup, reporter)
    baseline_bytes = memory_probes.rss_bytes()
    lookups, threads = cell.steps * spec.batch_lookups, torch.get_num_threads()
    plan = plan_feed(device=cell.device, lookups=lookups, cores=usable_cores(), threads=threads)
    torch.set_num_threads(plan.threads)
    reopen = partial(open_workload, cell)
    reporter.phase("feed")
    with ExitStack() as stack:
        feed = stack.enter_context(open_feed(plan, setup.workload, reopen=reopen, total=cell.steps, device=spec.device))
        budget = stack.enter_context(host_budget(setup))
        reporter.phase("build")
        system, trainer = setup.build(feed, total_steps=cell.steps, beat=reporter.beat)
        sample = SampledRows(system, setup.workload, cell, rows) if rows is not None and system.exact else None
        if budget is not None:
            budget.apply()
        measurement, _ = measure(
            setup, system, trainer, plan=plan, baseline_bytes=baseline_bytes, reporter=reporter, sample=sample
        )
        held = None if budget is None else budget.held()
        if sample is not None:
            reporter.phase("read rows")
            sample.read("late")
            try:
                sample.save()
            except StoreError as error:
                reporter.notes.append(f"its rows after training were not kept: {error}")
    return measurement.model_copy(update={"drive": speed, "held": held}), system.slots


def measure(
    setup: CellSetup,
    system: EmbeddingSystem,
    trainer: Trainer,
    *,
    plan: FeedPlan,
    baseline_bytes: int,
    reporter: Reporter,
    sample: SampledRows | None = None,
    while_counting: AbstractContextManager[object] | None = None,
) -> tuple[Measurement, float]:
    """Train, count and evaluate. Returns also the seconds of the training steps before the counted ones."""
    cell, workload = setup.cell, setup.workload
    parts = cell.quality_points if cell.ranks is None else 0  # a rank has only the scores of its part
    trained = Progressive(parts=parts, steps=cell.steps, batch_size=workload.batch_size)
    runs: list[Run] = []
    reporter.phase("train")
    for done in range(0, cell.train_steps, TOGETHER):

        def beat(step: int, done: int = done) -> None:
            reporter.beat(done + step, cell.train_steps)

        steps = min(TOGETHER, cell.train_steps - done)
        runs.append(trainer.run(steps, on_step=beat, on_scores=trained))
        if done == 0 and sample is not None:
            sample.read("early")
        multiply_in(tf32=cell.tf32)  # not before the early rows are read: they are compared in fp32
    trained_s = sum(run.duration_s for run in runs)
    memory = memory_of(system, baseline_bytes)  # before counting, whose sorts take memory of their own
    reporter.phase("count")
    system.count_traffic(cell.counts)
    system.reset_counters()
    with while_counting or nullcontext():
        counted = trainer.run(
            cell.counted_steps, on_step=lambda step: reporter.beat(step, cell.counted_steps), on_scores=trained
        )
    runs.append(counted)
    traffic = traffic_of(system, cell.counted_steps) if cell.counts else None
    system.count_traffic(False)
    if not math.isfinite(counted.loss):
        raise FloatingPointError(f"the loss is {counted.loss} after {cell.steps} steps: lower --lr")
    reporter.phase("evaluate")
    quality = quality_of(cell, trainer, workload, points=trained.points, final_loss=counted.loss, beat=reporter.beat)
    placement = system.placement
    measurement = Measurement(
        placement=placement.label,
        offloads=placement.offloads,
        same_kernel_as=placement.same_kernel_as,
        exact=system.exact,
        prior_knowledge=system.prior_knowledge,
        shares_process=system.shares_process,
        busy_between_steps=system.busy_between_steps,
        timing=timing_of(cell, runs=runs, plan=plan, reporter=reporter),
        quality=quality,
        memory=memory,
        traffic=traffic,
        epoch_samples=workload.epoch_rows(),
        frequencies=setup.frequencies.source,
    )
    return measurement, trained_s


def first_failure(verification: Verification) -> str:
    """Text of the first check that failed."""
    failed = [check for check in verification.checks if not check.passed]
    if not failed:
        return "no check applies to this system on this device"
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].name}: {failed[0].detail}{more}"
