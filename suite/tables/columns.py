"""The columns of the comparison. A new column is one entry here: every format and the page show it.

A column shows a number of `suite.tables.rows.Row.line`; what is counted or measured anew is added there.
"""

from enum import StrEnum
from typing import Final

from suite.tables.formatting import amount, count, duration, gigabytes, megabytes, percent, relative, score
from suite.tables.sheet import Column
from suite.tables.statistics import Estimate


class Columns(StrEnum):
    """The columns that a terminal shows: the main ones, or a second table with the rest as well."""

    MAIN = "main"
    ALL = "all"


def hit_rate(share: float) -> str:
    """A hit rate with two decimals."""
    return percent(share, 2)


def _ratio(found: Estimate, noise: float | None = None) -> str:
    """A ratio of speeds without its interval, which the CSV has."""
    return "1" if found.low is None and found.value == 1 else amount(found.value, noise)


SYSTEM: Final = Column(words="system", name="system", text=True)
PRIOR_KNOWLEDGE: Final = Column(
    words="knew", name="prior_knowledge", text=True, definition="what the system knew of the ids."
)
AUROC: Final = Column(
    words="AUROC",
    name="auroc",
    show=score,
    noisy=True,
    definition="on the test split after training (torchmetrics), mean over rounds, to the first digit that its "
    "standard error moves.",
)
STEPS_PER_S: Final = Column(
    words="it/s", name="steps_per_s", show=amount, noisy=True,
    definition="iterations per second in its own turns: their median, the mean over builds.",
)  # fmt: skip
EPOCH: Final = Column(
    words="epoch time", name="epoch_s", show=lambda seconds, noise: f"~{duration(seconds, noise)}", noisy=True,
    definition="samples of the training split over samples per second.",
)  # fmt: skip
RATIO: Final = Column(
    words="vs full_gpu", name="ratio", show=relative, noisy=True,
    definition="speed relative to the all-on-device baseline in the same turns, with a 95 % interval over "
    "runs, or within one run over builds.",
)  # fmt: skip
EMBEDDING: Final = Column(
    words="embeddings vs full_gpu", name="embedding_ratio", show=_ratio, noisy=True,
    definition="vs full_gpu, of the embedding step alone: forward and backward without the MLPs.",
)  # fmt: skip
KERNEL: Final = Column(
    words="vs plain table", name="kernel_ratio", show=_ratio, noisy=True,
    definition="speed relative to all rows in one table of the same kernel: of reference (torch's EmbeddingBag) for "
    "colossalai_cache, else of full_gpu (fbgemm's).",
)  # fmt: skip
RESERVED: Final = Column(
    words="GPU GB reserved", name="device_reserved_bytes", show=gigabytes,
    definition="torch's peak reserved, the largest of any round. UVM bypasses that allocator.",
)  # fmt: skip
CPU_MEMORY: Final = Column(
    words="CPU GB", name="host_peak_rss_bytes", show=gigabytes,
    definition="peak resident memory of the process, the largest of any round.",
)  # fmt: skip
HIT_RATE: Final = Column(
    words="hit rate", name="hit_rate", show=hit_rate,
    definition="1 - unique misses / unique ids, before anything is fetched, in the first round's counted steps.",
)  # fmt: skip
MISSES: Final = Column(
    words="misses, % of optimal", name="misses_over_optimum", show=percent,
    definition="unique misses relative to those of Belady's rule with as many slots in the same steps.",
)  # fmt: skip
BYTES_OVER_MINIMUM: Final = Column(
    words="bytes over minimum", name="bytes_over_minimum", show=amount,
    definition="bytes moved both ways relative to those of Belady's rule with as many slots in the same steps.",
)  # fmt: skip
STATUS: Final = Column(
    words="status", name="status", text=True, definition="how the system ended: the worst of its rounds."
)
VERIFIED: Final = Column(
    words="verified", name="verified", text=True,
    definition="trained beside the reference first: bitwise equal, or the largest difference of any loss, row or "
    "(relative to its size) optimizer state.",
)  # fmt: skip
ACCURACY: Final = Column(words="accuracy", name="accuracy", show=score, noisy=True, definition="as AUROC.")
ALLOCATED: Final = Column(
    words="GPU GB allocated", name="device_allocated_bytes", show=gigabytes,
    definition="torch's peak allocated during build and training; the largest of any round.",
)  # fmt: skip

MAIN: Final = (
    SYSTEM, PRIOR_KNOWLEDGE, AUROC, STEPS_PER_S, RATIO, EMBEDDING, KERNEL, RESERVED, CPU_MEMORY, HIT_RATE, MISSES,
    STATUS,
)  # fmt: skip
PAPER: Final = (AUROC, ACCURACY, STEPS_PER_S, EPOCH, ALLOCATED, RESERVED, CPU_MEMORY)
"""The columns that the paper published (arXiv 2208.05321)."""
REST: Final = (
    ACCURACY,
    Column(
        words="it/s alone", name="alone_steps_per_s", show=amount, noisy=True,
        definition="of steps in a row, with no other system's between them.",
    ),
    Column(
        words="total it/s", name="total_steps_per_s", show=amount, noisy=True,
        definition="all timed iterations over all their seconds: stalls show here.",
    ),
    EPOCH,
    ALLOCATED,
    Column(words="unique ids", name="unique_ids", show=count, definition="distinct ids of each counted batch, summed."),
    Column(words="unique misses", name="unique_misses", show=count, definition="those not found on the device."),
    Column(words="lookups", name="lookups", show=count, definition="ids of the counted batches, repeats included."),
    Column(words="lookup misses", name="lookup_misses", show=count, definition="those not found on the device."),
    Column(words="lookup hit rate", name="lookup_hit_rate", show=hit_rate),
    Column(
        words="MB fetched per it", name="fetched_bytes_per_step", show=megabytes,
        definition="rows fetched to the device times row bytes, optimizer state included, per iteration; so for those "
        "written back.",
    ),
    Column(words="MB written back per it", name="written_back_bytes_per_step", show=megabytes),
    BYTES_OVER_MINIMUM,
    Column(
        words="rows MB", name="device_rows_bytes", show=megabytes,
        definition="device memory for rows, by the system's own account; on a CPU, RAM in the device's place. Likewise "
        "for optimizer state, for the index by which rows are found, and for rows on their way (staging).",
    ),
    Column(words="state MB", name="device_state_bytes", show=megabytes),
    Column(words="index MB", name="device_index_bytes", show=megabytes),
    Column(words="staging MB", name="device_staging_bytes", show=megabytes),
    Column(
        words="host MB", name="host_tier_bytes", show=megabytes,
        definition="all that is in RAM by the system's own account; so for disk.",
    ),
    Column(words="disk MB", name="disk_tier_bytes", show=megabytes),
    VERIFIED,
    Column(words="placement", name="placement", text=True, definition="where rows were, read off the live objects."),
    Column(words="timed", name="way", text=True, definition="where the system took its turns."),
)  # fmt: skip
