"""Sizes of a run by name: table rows, model, batch and steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

LEAD_STEPS = 1
"""Untimed steps at the start of every turn: other systems' turns took weights and hot rows out of the CPU's cache. They
are back after a step."""
AGREE = 0.05
"""Share by which paces in turns and alone may differ, beside the noise. Where the baseline's differ by more, systems of
one process are timed again in processes of their own; where a row's do, no verdict uses it."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One size of the whole experiment; see `Cell` for the fields of the same names.

    Attributes:
        epoch_samples: Training samples of one synthetic epoch, after which a DLRM has learnt most of what the labels
            hold; None: those of the published split.
        lr: Learning rate by optimizer. Off by roundings, those of `small` move AUROC by at most 2.4e-4 with SGD, 9.3e-5
            with row-wise Adagrad (results/streams/rounding.json). With SGD at 1, the published rate, it is 0.023 on
            Criteo Kaggle. With the model of `full` it is 9.2e-5 at 0.2 and 7.2e-3 at 0.5 (rounding_full.json).
        warmup_steps: Steps after every build, of the embeddings alone. As many as `train_steps`, where that is
            affordable: then traffic is counted and turns are timed from the same step on.
        turn_steps: Least steps of a turn; `suite.run.turns.groups` makes turns of short steps longer.
        host_budgets: Memory that rows on a drive may take, by default; empty: tables are on no drive. Systems are
            built once then, because tables are written whole: what else are builds are blocks of turns.
        timeout_s, stall_s: Limits of one cell.
    """

    name: str
    max_rows: int | None
    embedding_dim: int
    batch_size: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    cache_ratio: float
    train_steps: int
    counted_steps: int
    quality_points: int
    evaluation_batches: int
    builds: int
    warmup_steps: int
    turns: int
    turn_steps: int
    epoch_samples: int | None
    lr: Mapping[str, float]
    timeout_s: float
    stall_s: float
    host_budgets: tuple[int, ...] = ()


_LR = {"sgd": 1.0, "rowwise_adagrad": 0.01, "adagrad": 0.01, "adam": 0.001}
HOST_OVERHEAD = 1.25
"""Host bytes per byte of rows at full scale: index, frequencies, copies in flight."""

SMOKE = Scale(
    name="smoke",
    max_rows=50_000,
    embedding_dim=16,
    batch_size=256,
    bottom_mlp=(32,),
    top_mlp=(32, 1),
    cache_ratio=0.1,
    train_steps=20,
    counted_steps=4,
    quality_points=2,
    evaluation_batches=8,
    builds=2,
    warmup_steps=2,
    turns=4,
    turn_steps=1,
    epoch_samples=512_000,
    lr=_LR,
    timeout_s=120,
    stall_s=60,
)
SMALL = Scale(
    name="small",
    max_rows=1_000_000,
    embedding_dim=32,
    batch_size=2048,
    bottom_mlp=(64,),
    top_mlp=(64, 1),
    cache_ratio=0.05,
    train_steps=160,
    counted_steps=48,
    quality_points=5,
    evaluation_batches=40,
    builds=3,
    warmup_steps=160,
    turns=8,
    turn_steps=8,
    epoch_samples=8_192_000,
    lr=_LR | {"sgd": 0.25},
    timeout_s=300,
    stall_s=60,
)
FULL = Scale(
    name="full",
    max_rows=None,
    embedding_dim=128,
    batch_size=16_384,
    bottom_mlp=(512, 256),
    top_mlp=(1024, 1024, 512, 256, 1),
    cache_ratio=0.01,
    train_steps=1_850,
    counted_steps=150,
    quality_points=10,
    evaluation_batches=60,
    builds=3,
    warmup_steps=300,
    turns=12,
    turn_steps=20,
    epoch_samples=None,
    lr=_LR | {"sgd": 0.2},
    timeout_s=7200,
    stall_s=900,
)

SCALES = {scale.name: scale for scale in (SMOKE, SMALL, FULL)}

DISK_SCALES = {
    "smoke": replace(
        SMOKE,
        turn_steps=8,
        turns=2,
        builds=4,
        max_rows=500_000,
        embedding_dim=64,
        warmup_steps=4,
        host_budgets=(64 << 20,),
    ),
    "small": replace(
        SMALL,
        turns=2,
        builds=4,
        max_rows=4_000_000,
        embedding_dim=128,
        train_steps=24,
        counted_steps=8,
        quality_points=2,
        warmup_steps=24,
        host_budgets=(128 << 20, 256 << 20),
    ),
    "full": replace(
        FULL,
        turn_steps=9,
        turns=3,
        builds=4,
        batch_size=4096,
        train_steps=8,
        counted_steps=8,
        quality_points=2,
        evaluation_batches=4,
        warmup_steps=32,
        host_budgets=(512 << 20, 1 << 30, 2 << 30),
    ),
}
"""Scales of rows on a drive. Systems read ahead and write behind, so turns are long."""


def scale_of(name: str, *, on_drive: bool) -> Scale:
    """A scale by name."""
    return (DISK_SCALES if on_drive else SCALES)[name]


def default_scale(workload: str, *, table_rows: int, device: str, host_bytes: int) -> tuple[str, str]:
    """The scale where none was asked for, and why: `small` on a CPU, else the largest that fits the host's memory."""
    if device == "cpu":
        return SMALL.name, f"{workload}: scale small, the default without a GPU"
    needed = table_rows * FULL.embedding_dim * 4 * HOST_OVERHEAD
    if needed <= host_bytes:
        return FULL.name, f"{workload}: scale full, the default with a GPU"
    return SMALL.name, (
        f"{workload}: scale small, because full needs about {needed / 1e9:.0f} GB of host memory and "
        f"{host_bytes / 1e9:.0f} GB are available"
    )
