"""What a cell measures in its own process: how long its parts took, quality, memory and traffic."""

from __future__ import annotations

from suite.records.model import Model


class Timing(Model):
    """How long the parts of a cell took in its own process. Throughput is not among them: see `Turns`."""

    data_s_per_step: float
    """Making one batch, or waiting until it was made, outside the training clock; mean over all steps."""
    batches_made: str
    """By whom batches were made, and when; see `suite.run.cell.feed.Mode`."""
    producers: int
    training_threads: int
    build_s: float
    verify_s: float
    train_s: float
    evaluate_s: float
    total_s: float


class QualityPoint(Model):
    """Quality in a part of training, up to a number of samples: every sample is scored before it is trained on."""

    samples: int
    """Trained on by the end of the part."""
    loss: float
    auroc: float | None
    """Over the part; None where all its labels are equal."""


class Quality(Model):
    """On the test split after training."""

    auroc: float
    accuracy: float
    samples: int
    best_auroc: float | None = None
    """Of the model that planted the labels, on the same test samples' stream; None where labels are real."""
    final_loss: float
    points: tuple[QualityPoint, ...] = ()
    """Of the parts of training, in order."""


class Memory(Model):
    """Peaks over build and training. None where the machine cannot say: never 0."""

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    """Of this process after training, its CUDA context included, as NVML says."""
    host_peak_rss_bytes: int
    host_baseline_rss_bytes: int
    """Resident after imports, before the model is built."""
    host_pss_bytes: int | None = None
    anatomy_bytes: dict[str, int]
    """The system's own account, keyed `tier/purpose`, e.g. `device/rows`."""


class Traffic(Model):
    """Counted over `steps` steps of the same stream for every system. None: not known."""

    steps: int
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookup_misses: int | None = None
    bytes_fetched: int | None = None
    bytes_written_back: int | None = None
    overflow_batches: int = 0
    late_batches: int | None = None
    planning_wait_s: float | None = None
    fetch_wait_s: float | None = None
    write_back_wait_s: float | None = None
    """What the training thread waited for plans, reads and write-backs, or took to do them itself."""
    per_table: dict[str, tuple[int, int]] | None = None
    """Unique ids and unique misses by table, where known."""

    @property
    def wait_s(self) -> float | None:
        """What the training thread waited in all."""
        waits = (self.planning_wait_s, self.fetch_wait_s, self.write_back_wait_s)
        return None if None in waits else sum(wait for wait in waits if wait is not None)

    @property
    def hit_rate(self) -> float | None:
        """1 - unique misses / unique ids, before anything is fetched."""
        if self.unique_misses is None or not self.unique_ids:
            return None
        return 1 - self.unique_misses / self.unique_ids
