"""The rows that the paper published (arXiv 2208.05321, hpcaitech/CachedEmbedding README @a2af3d7e), as data."""

import csv
from functools import cache
from pathlib import Path

from suite.records.base import Model

NOTE = (
    "Published memory is printed as in its source, which says GB and means GiB: the 16.13 GB of torchrec on "
    "Criteo Kaggle is the whole table, 16.10 GiB. torchrec's GPU memory equals the whole table on Criteo Kaggle and "
    "Avazu, so these rows, called UVM by the source, ran mostly or entirely out of GPU memory."
)
"""What a reader of the published rows has to know. Ours, not the source's."""


class PublishedRow(Model):
    """One row of the paper's table, as printed there but for `epoch_s`, there in minutes too; of memory see `NOTE`."""

    workload: str
    system: str
    auroc: float
    accuracy: float
    steps_per_s: float
    epoch_s: float
    gpu_allocated_gb: float
    gpu_reserved_gb: float
    cpu_gb: float
    cache_ratio: float
    batch_size: int
    gpu: str
    cpu: str
    memory: str
    source: str

    @property
    def hardware(self) -> str:
        """The machine in one line."""
        return f"{self.gpu}; {self.cpu}; {self.memory}"


@cache
def published_rows(workload: str) -> tuple[PublishedRow, ...]:
    """The published rows of a workload, in the source's order; none for a workload that the paper does not have."""
    rows = csv.DictReader(Path(__file__).with_name("published.csv").read_text(encoding="utf-8").splitlines())
    return tuple(PublishedRow.model_validate(row) for row in rows if row["workload"] == workload)
