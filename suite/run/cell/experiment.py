"""One cell, top to bottom: support, verify, build, train, count, evaluate, replay. `suite.run.turns` times speed."""

import gc
import hashlib
import math
import os
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_accuracy, binary_auroc

from suite.records.measured import BeladyBound, DriveSpeed, Memory, Quality, QualityPoint, Timing, Traffic
from suite.records.record import Measurement, Status, Verification
from suite.records.scales import LEAD_STEPS
from suite.records.store import StoreError, write_atomically
from suite.run import resources
from suite.run.agreement import SampledRows
from suite.run.cell.feed import open_feed, open_workload, producers_for, usable_cores
from suite.run.cell.host_budget import drive_of, host_budget, set_allocator
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import TOGETHER, OnStep, StepsRun, Trainer, fixed_order, multiply_in
from suite.run.cell.verify import verify
from suite.run.worker import CODE, CellResult, Reporter, RunCell
from systems import registry
from systems.contract import Counters, EmbeddingSystem, Verdict
from systems.spec import row_bytes_of
from workloads.batch import Split

_STEADY = 0.05
"""Largest change of misses per step, a share, of a cache that counts as warm."""
_FEW_STEPS = 8
"""With fewer steps in a half, misses change by chance."""


def run_cell(request: RunCell, reporter: Reporter) -> CellResult:
    """Run one cell in this process."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if request.cell.host_budget_bytes is not None:
        set_allocator(keep_freed=False)
    reporter.phase("support")
    setup = CellSetup.of(request.cell)
    support = setup.support()
    if support.verdict is not Verdict.YES:
        return CellResult(status=Status(support.verdict), reason=support.reason)
    verification: Verification | None = None
    if registry.Variant.parse(setup.cell.system).name in registry.CONTROLS:
        reporter.notes.append("a control, not a system: not verified, not ranked")
    else:
        reporter.phase("verify")
        verification = verify(
            setup.system_class, spec=setup.spec, workload=setup.workload, seed=setup.cell.round_seed, beat=reporter.beat
        )
        if not verification.passed:
            return CellResult(status=Status.WRONG_ANSWER, reason=first_failure(verification), verification=verification)
    if not resources.reset_peaks(setup.spec.device):
        reporter.notes.append("the peak of host memory could not be reset and includes imports and verification")
    measurement, slots = _train(setup, reporter, None if verification is None else request.rows)
    optimum: BeladyBound | None = None
    if slots and measurement.traffic is not None and measurement.traffic.unique_misses is not None:
        reporter.phase("replay")
        optimum = optimum_of(setup, slots, reporter, folder=request.optima)
    return CellResult(
        status=Status.OK,
        verification=verification,
        measurement=measurement,
        optimum=optimum,
        notes=tuple(reporter.notes),
    )


def _train(setup: CellSetup, reporter: Reporter, rows: Path | None) -> tuple[Measurement, int]:
    """Build the system at full size and measure it. Returns also the slots of its cache."""
    cell, spec = setup.cell, setup.spec
    speed: DriveSpeed | None = None
    if setup.on_drive:
        reporter.phase("drive")
        speed = drive_of(setup, reporter)
    baseline_bytes = resources.rss_bytes()
    cores = usable_cores()
    producers = producers_for(device=cell.device, lookups=cell.steps * spec.batch_lookups, cores=cores)
    if producers:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores - producers)))
    reporter.phase("feed")
    with ExitStack() as stack:
        opened = open_feed(producers, cell, setup.workload, device=spec.device, on_batch=reporter.beat)
        feed = stack.enter_context(opened)
        budget = stack.enter_context(host_budget(setup))
        reporter.phase("build")
        system, trainer = setup.build(feed, total_steps=cell.steps, beat=reporter.beat)
        sample = SampledRows(system, setup.workload, cell, rows) if rows is not None and system.exact else None
        if budget is not None:
            budget.apply(system, beat=reporter.beat)
        measurement = measure(
            setup, system, trainer, producers=producers, baseline_bytes=baseline_bytes, reporter=reporter, sample=sample
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


def _change_of_misses(halves: Sequence[Counters]) -> float | None:
    """Change of misses per step from the first half of the counted steps to the second, a share; None: not known.

    Args:
        halves: Counters at the end of each half, both from the start of the first.
    """
    if len(halves) < 2 or halves[0].steps < _FEW_STEPS or halves[1].steps == halves[0].steps:
        return None
    first, both = (half.unique_misses for half in halves)
    if not first or both is None:
        return None
    return (both - first) / (halves[1].steps - halves[0].steps) / (first / halves[0].steps) - 1


def measure(
    setup: CellSetup,
    system: EmbeddingSystem,
    trainer: Trainer,
    *,
    producers: int,
    baseline_bytes: int,
    reporter: Reporter,
    sample: SampledRows | None = None,
    while_counting: AbstractContextManager[object] | None = None,
) -> Measurement:
    """Train, count and evaluate.

    Args:
        setup: The cell's setup.
        system: The system, built at full size.
        trainer: Its trainer.
        producers: Processes that make its batches during training.
        baseline_bytes: Resident memory before the system was built.
        reporter: Reports phases and steps.
        sample: Rows to read after the first steps.
        while_counting: Entered for the counted steps.
    """
    cell = setup.cell
    meter = QualityMeter(setup)
    runs: list[StepsRun] = []
    paces: list[float] = []
    halves: list[Counters] = []

    def beats(before: int, steps: int) -> OnStep:
        return lambda step: reporter.beat(before + step, steps)

    reporter.phase("train")
    for done in range(0, cell.train_steps, TOGETHER):
        steps = min(TOGETHER, cell.train_steps - done)
        lead = min(LEAD_STEPS, steps - 1)
        on_step = beats(done + lead, cell.train_steps)
        with fixed_order(system.spec.device) if done == 0 else nullcontext():  # early rows are compared
            runs.append(trainer.run(steps - lead, lead_steps=lead, on_step=on_step, on_scores=meter))
        paces.append((steps - lead) / runs[-1].duration_s)
        if done == 0 and sample is not None:
            sample.read("early")
        multiply_in(tf32=cell.tf32)  # not before the early rows are read: they are compared in fp32
    # memory before counting, whose sorts take memory of their own
    memory = Memory(
        **resources.device_peak(system.spec.device),
        host_peak_rss_bytes=resources.peak_rss_bytes(),
        host_baseline_rss_bytes=baseline_bytes,
        anatomy_bytes={f"{tier}/{purpose}": size for (tier, purpose), size in system.memory().items()},
    )
    reporter.phase("count")
    system.count_traffic(cell.counts)
    system.reset_counters()
    half = cell.counted_steps - cell.counted_steps // 2
    with while_counting or nullcontext():
        for done in range(0, cell.counted_steps, half):
            steps = min(half, cell.counted_steps - done)
            runs.append(trainer.run(steps, on_step=beats(done, cell.counted_steps), on_scores=meter))
            halves.append(system.counters())
    traffic = _traffic(system, cell.counted_steps) if cell.counts else None
    if cell.counts and (change := _change_of_misses(halves)) is not None and abs(change) > _STEADY:
        reporter.notes.append(
            f"misses per step changed by {100 * change:+.0f} % between the halves of the counted steps: its cache was "
            "not warm yet"
        )
    system.count_traffic(False)
    loss = runs[-1].loss
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} after {cell.steps} steps: lower --lr")
    reporter.phase("evaluate")
    quality = meter.on_test_split(trainer, reporter, final_loss=loss)
    placement = system.placement
    return Measurement(
        placement=placement.label,
        offloads=placement.offloads,
        same_kernel_as=placement.same_kernel_as,
        plain_table=system.plain_table,
        sums_gradients=system.sums_gradients,
        exact=system.exact,
        prior_knowledge=system.prior_knowledge,
        shares_process=system.shares_process,
        busy_between_steps=system.busy_between_steps,
        timing=Timing(
            data_s_per_step=sum(run.data_s for run in runs) / cell.steps,
            batches_made="by producers, during training" if producers else "by the training process, before the clock",
            producers=producers,
            training_threads=torch.get_num_threads(),
            alone_steps_per_s=statistics.median(paces[len(paces) // 3 :]),
        ),
        quality=quality,
        memory=memory,
        traffic=traffic,
        epoch_samples=setup.workload.epoch_rows(),
        frequencies=setup.frequencies.source,
    )


class QualityMeter:
    """Quality in parts of training of equal length, every sample before it is trained on, and on the test split."""

    def __init__(self, setup: CellSetup) -> None:
        self._setup, cell = setup, setup.cell
        parts = cell.quality_points if cell.ranks is None else 0  # a rank has only the scores of its part
        self._ends = {round(cell.steps * part / parts) for part in range(1, parts + 1)}
        self._done = 0
        self._scored: list[tuple[Tensor, Tensor, Tensor]] = []
        self._points: list[QualityPoint] = []

    def __call__(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Add the scores of a step; see `suite.run.cell.training.OnScores`."""
        if not self._ends:
            return
        self._scored.append((logits.sigmoid().cpu(), labels.cpu(), loss.cpu()))
        self._done += 1
        if self._done in self._ends:
            scores, of_part, losses = zip(*self._scored, strict=True)
            targets = torch.cat(of_part).int()
            auroc = float(binary_auroc(torch.cat(scores), targets)) if len(targets.unique()) > 1 else None
            samples, loss_of_part = self._done * self._setup.workload.batch_size, float(torch.stack(losses).mean())
            self._points.append(QualityPoint(samples=samples, loss=loss_of_part, auroc=auroc))
            self._scored.clear()

    def on_test_split(self, trainer: Trainer, reporter: Reporter, *, final_loss: float) -> Quality:
        """Quality after training, with that of the parts."""
        cell, workload = self._setup.cell, self._setup.workload
        if not workload.batches(Split.TEST):  # a test split smaller than one training batch
            workload = open_workload(cell, whole_split=Split.TEST)
        batches = min(cell.evaluation_batches, workload.batches(Split.TEST))
        scores, labels = [], []
        for index in range(batches):
            batch = workload.batch(index, Split.TEST)
            scores.append(trainer.logits(batch).sigmoid().cpu())
            labels.append(batch.labels.int())
            reporter.beat(index + 1, batches)
        return Quality(
            auroc=float(binary_auroc(torch.cat(scores), torch.cat(labels))),
            accuracy=float(binary_accuracy(torch.cat(scores), torch.cat(labels))),
            samples=batches * workload.batch_size,
            best_auroc=workload.best_auroc,
            final_loss=final_loss,
            points=tuple(self._points),
        )


def first_failure(verification: Verification) -> str:
    """Text of the first check that failed."""
    failed = [check for check in verification.checks if not check.passed]
    if not failed:
        return "no check applies to this system on this device"
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].name}: {failed[0].detail}{more}"


def _traffic(system: EmbeddingSystem, steps: int) -> Traffic:
    """The system's counters over `steps` steps."""
    counted = system.counters()
    kept = {name: getattr(counted, name) for name in Traffic.model_fields}
    kept["steps"] = counted.steps or steps  # with look-ahead the system saw the first of these before counting began
    return Traffic(**kept)


def optimum_of(setup: CellSetup, slots: int, reporter: Reporter, *, folder: Path | None = None) -> BeladyBound | None:
    """Minimum misses and bytes moved of any cache with as many slots, in the counted steps: Belady's rule, replayed.

    All steps are replayed, but only misses of the counted steps cost anything. So the counted steps start with the best
    rows that a cache could hold by then: any that an earlier step used, and any of the most frequent rows.

    Args:
        setup: The cell's setup; its workload is read again, twice.
        slots: Slots of its system's cache, at least one.
        reporter: Gets a beat after every replayed step, and a note if the replay fails.
        folder: Optima by stream and cache: most systems have the same number of slots. None: none is kept.

    Returns:
        None: the steps could not be replayed.
    """
    # imported only now: the simulators' modules would count as memory of the system
    from suite.simulate.models import registry as models
    from suite.simulate.models.model import CannotReplay, RowBytes, Setting, Span, replay
    from suite.simulate.trace import WorkloadTrace

    cell, bypasses = setup.cell, setup.system_class.bypasses
    identity = f"{cell.setting} {cell.round} {slots} {bypasses} {os.environ.get(CODE)}"
    kept = folder and folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    if kept is not None:
        with suppress(OSError, ValueError):  # there is none, or it is damaged
            return BeladyBound.model_validate_json(kept.read_bytes())
    gc.collect()  # frees the rows of a system in a reference cycle
    try:
        trace = WorkloadTrace(setup.workload, prefix=cell.frequency_prefix)
        setting = Setting(trace=trace, span=Span(counted_from=cell.train_steps, stop=cell.steps), slots=slots)
        belady = registry.Variant("belady", (("bypass", "on" if bypasses else "off"),))
        model = models.build(belady, setting)
        tally = replay(model, on_batches=lambda _: reporter.beat())
    except (CannotReplay, MemoryError) as error:
        reporter.notes.append(f"no optimum: {str(error) or 'too little host memory to replay the steps'}")
        return None
    row = RowBytes(weights=row_bytes_of(setup.spec.tables[0]), optimizer=setup.spec.optimizer, dim=cell.embedding_dim)
    found = BeladyBound(
        slots=slots,
        bypasses=bypasses,
        first_step=cell.train_steps,
        steps=tally.batches,
        unique_misses=tally.unique_misses,
        bytes_moved=sum(model.bytes_moved(tally, row)),
    )
    if kept is not None:
        with suppress(StoreError):  # the next cell replays it again
            write_atomically(kept, found.model_dump_json())
    return found
