"""Quality of a cell: progressively while it trains, and on the test split after training."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from suite.records.measured import Quality, QualityPoint
from suite.records.record import Cell
from suite.run.cell.feed import open_workload
from suite.run.cell.training import Trainer
from workloads.batch import Split, Workload

_HERE: dict[str, Any] = {"sync_on_compute": False}
"""Scores are whole on every rank. Where torchrec has made a process group of one, a thread of gloo would open an OpenMP
team to gather them, and from then on training would take twice as long."""


class ProgressiveQuality:
    """Quality during training, in `parts` parts of equal length: every sample is scored before it is trained on."""

    def __init__(self, *, parts: int, steps: int, batch_size: int) -> None:
        self._ends = {round(steps * part / parts) for part in range(1, parts + 1)}
        self._batch_size = batch_size
        self._done = 0
        self._auroc, self._losses = BinaryAUROC(**_HERE), MeanMetric(**_HERE)
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


def evaluate(
    cell: Cell,
    trainer: Trainer,
    workload: Workload,
    *,
    points: Sequence[QualityPoint],
    final_loss: float,
    beat: Callable[[int, int], None],
) -> Quality:
    """Quality on the test split. `beat` gets the number of batches done and in all."""
    auroc, accuracy = BinaryAUROC(**_HERE), BinaryAccuracy(**_HERE)
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
