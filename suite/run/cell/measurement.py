"""What is measured of a cell, as its record keeps it: speed, memory, traffic and quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from suite.records.record import Cell, Memory, Quality, Timing, Traffic
from suite.run import memory_probes
from suite.run.cell.feed import FeedPlan
from suite.run.cell.reporter import Phases
from suite.run.cell.stream import open_workload
from suite.run.cell.training import Run, Trainer
from systems.contract import EmbeddingSystem
from workloads.batch import Split, Workload

OnBatch = Callable[[int, int], None]


def timing_of(cell: Cell, *, runs: Sequence[Run], windows: Sequence[Run], plan: FeedPlan, phases: Phases) -> Timing:
    """Rates of the timed windows, and how long the rest took."""
    steps_per_s = median(run.steps / run.duration_s for run in windows)
    return Timing(
        window_s=tuple(run.duration_s for run in windows),
        window_steps=cell.window_steps,
        steps_per_s=steps_per_s,
        samples_per_s=steps_per_s * cell.batch_size,
        data_s_per_step=sum(run.data_s for run in runs) / cell.steps,
        data_wait_s=sum(run.wait_s for run in windows),
        batches_made=plan.mode.value,
        producers=plan.producers,
        training_threads=plan.threads,
        build_s=phases.seconds("build"),
        verify_s=phases.seconds("verify"),
        evaluate_s=phases.seconds("evaluate"),
        total_s=phases.total_s,
    )


def memory_of(system: EmbeddingSystem, baseline_bytes: int) -> Memory:
    """Peaks so far; `baseline_bytes` were resident before the system was built."""
    peak = memory_probes.device_peak(system.spec.device)
    return Memory(
        device_allocated_bytes=peak.allocated_bytes,
        device_reserved_bytes=peak.reserved_bytes,
        device_used_bytes=peak.used_bytes,
        host_peak_rss_bytes=memory_probes.peak_rss_bytes(),
        host_baseline_rss_bytes=baseline_bytes,
        host_pss_bytes=memory_probes.pss_bytes(),
        anatomy_bytes={f"{tier}/{purpose}": size for (tier, purpose), size in system.memory().items()},
    )


def traffic_of(system: EmbeddingSystem, steps: int) -> Traffic:
    """What the system counted over so many steps."""
    counted = system.counters()
    per_table = counted.per_table
    return Traffic(
        steps=counted.steps or steps,  # a system that looks ahead saw the first of these before counting began
        lookups=counted.lookups,
        unique_ids=counted.unique_ids,
        unique_misses=counted.unique_misses,
        lookup_misses=counted.lookup_misses,
        bytes_fetched=counted.bytes_fetched,
        bytes_written_back=counted.bytes_written_back,
        overflow_batches=counted.overflow_batches,
        per_table=dict(per_table) if per_table is not None else None,
    )


def quality_of(cell: Cell, trainer: Trainer, workload: Workload, *, final_loss: float, beat: OnBatch) -> Quality:
    """Evaluate on the test split. `beat` is told how many batches are done, and of how many."""
    auroc, accuracy = BinaryAUROC(), BinaryAccuracy()
    if not workload.batches(Split.TEST):  # a test split smaller than one training batch
        workload = open_workload(cell, whole_split=Split.TEST)
    batches = min(cell.evaluation_batches, workload.batches(Split.TEST))
    for index in range(batches):
        batch = workload.batch(index, Split.TEST)
        scores = trainer.logits(batch).sigmoid().cpu()
        auroc.update(scores, batch.labels.int())
        accuracy.update(scores, batch.labels.int())
        beat(index + 1, batches)
    return Quality(
        auroc=float(auroc.compute()),
        accuracy=float(accuracy.compute()),
        samples=batches * workload.batch_size,
        best_auroc=workload.best_auroc,
        final_loss=final_loss,
    )
