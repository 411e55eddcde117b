"""Measurements of a cell for its record: durations, memory, traffic and quality."""

from collections.abc import Callable, Sequence

from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from suite.records.measured import Memory, Quality, QualityPoint, Timing, Traffic
from suite.records.record import Cell
from suite.run import memory_probes
from suite.run.cell.feed import FeedPlan
from suite.run.cell.reporter import Reporter
from suite.run.cell.stream import open_workload
from suite.run.cell.training import Run, Trainer
from systems.contract import EmbeddingSystem
from workloads.batch import Split, Workload


class Progressive:
    """Quality during training, in `parts` parts of equal length: every sample is scored before it is trained on."""

    def __init__(self, *, parts: int, steps: int, batch_size: int) -> None:
        self._ends = {round(steps * part / parts) for part in range(1, parts + 1)}
        self._batch_size = batch_size
        self._done = 0
        self._auroc, self._losses = BinaryAUROC(), MeanMetric()
        self._labels: set[float] = set()
        self.points: list[QualityPoint] = []

    def __call__(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Add the scores of a step; see `suite.run.cell.training.OnScores`."""
        if not self._ends:
            return
        labels = labels.cpu()
        self._auroc.update(logits.sigmoid().cpu(), labels.int())
        self._losses.update(loss.cpu())
        self._labels.update(labels.unique().tolist())
        self._done += 1
        if self._done not in self._ends:
            return
        auroc = float(self._auroc.compute()) if len(self._labels) > 1 else None
        samples = self._done * self._batch_size
        self.points.append(QualityPoint(samples=samples, loss=float(self._losses.compute()), auroc=auroc))
        self._auroc.reset()
        self._losses.reset()
        self._labels.clear()


def timing_of(cell: Cell, *, runs: Sequence[Run], plan: FeedPlan, reporter: Reporter) -> Timing:
    """Durations of the phases of a cell."""
    made = "by producers, during training" if plan.producers else "by the training process, before the clock"
    return Timing(
        data_s_per_step=sum(run.data_s for run in runs) / cell.steps,
        batches_made=made,
        producers=plan.producers,
        training_threads=plan.threads,
        build_s=reporter.seconds("build"),
        verify_s=reporter.seconds("verify"),
        train_s=reporter.seconds("train"),
        evaluate_s=reporter.seconds("evaluate"),
        total_s=reporter.total_s,
    )


def memory_of(system: EmbeddingSystem, baseline_bytes: int) -> Memory:
    """Memory peaks so far; `baseline_bytes` were resident before the system was built."""
    return Memory(
        **memory_probes.device_peak(system.spec.device),
        host_peak_rss_bytes=memory_probes.peak_rss_bytes(),
        host_baseline_rss_bytes=baseline_bytes,
        host_pss_bytes=memory_probes.pss_bytes(),
        anatomy_bytes={f"{tier}/{purpose}": size for (tier, purpose), size in system.memory().items()},
    )


def traffic_of(system: EmbeddingSystem, steps: int) -> Traffic:
    """The system's counters over `steps` steps."""
    counted = system.counters()
    kept = {name: getattr(counted, name) for name in Traffic.model_fields}
    kept["steps"] = counted.steps or steps  # with look-ahead the system saw the first of these before counting began
    return Traffic(**kept)


def quality_of(
    cell: Cell,
    trainer: Trainer,
    workload: Workload,
    *,
    points: Sequence[QualityPoint],
    final_loss: float,
    beat: Callable[[int, int], None],
) -> Quality:
    """Evaluate on the test split. `beat` gets the number of batches done and in all."""
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
        points=tuple(points),
    )
