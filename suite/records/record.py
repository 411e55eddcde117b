"""What one run of one cell leaves behind: its configuration, its environment and what was measured.

The models below are the schema of the JSON files under `results/`, published as `schema/record-2.json`; units end the
field names. A change to them is a new version: see `suite.records.upgrades`.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from suite.records.status import Status

SCHEMA_VERSION: Final = 2
_LATER_FIELDS: Final = ("frequency_prefix", "frequency_sketch_bytes")
"""Of `Cell`: added after the first records were published."""


class _Model(BaseModel):
    # a loss can diverge: NaN must survive JSON
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,  # the published schema explains its fields
        json_schema_serialization_defaults_required=True,  # what is written has every field
    )


class Cell(_Model):
    """The configuration of a cell: system variant x workload x setting, and which round of it."""

    system: str
    """With its variant, e.g. `fbgemm_uvm_caching[policy=lfu]`."""
    workload: str
    data: Literal["synthetic", "real"]
    data_dir: str | None = None
    """Directory of the prepared dataset, for real data."""
    data_digest: str | None = None
    """Digest of the prepared dataset's manifest, for real data."""
    scale: str
    device: Literal["cpu", "cuda"]
    optimizer: str
    lr: float
    eps: float
    batch_size: int
    embedding_dim: int
    max_rows: int | None = None
    """Synthetic tables are capped alike so that all of them together hold about so many rows. None: published sizes."""
    bottom_mlp: tuple[int, ...]
    """Hidden widths of the bottom MLP, its output being `embedding_dim`."""
    top_mlp: tuple[int, ...]
    """Widths of the top MLP, the logit included."""
    cache_ratio: float | None = None
    device_budget_bytes: int | None = None
    warmup_steps: int
    windows: int
    window_steps: int
    counted_steps: int
    evaluation_batches: int
    seed: int
    round: int = 0
    frequency_prefix: float = 1.0
    """Share of the training split, from its beginning, that frequencies for systems are taken from."""
    frequency_sketch_bytes: int | None = None
    """Frequencies come from a sketch of so many bytes; None: exact counts, or a synthetic stream's own law."""

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.warmup_steps + self.windows * self.window_steps + self.counted_steps

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.system} x {self.workload}" + (f" #{self.round + 1}" if self.round else "")

    @property
    def setting(self) -> str:
        """Digest of everything but the system and the round: cells that share it are comparable."""
        return hashlib.sha256(self.identity("system", "round").encode()).hexdigest()[:12]

    def identity(self, *without: str) -> str:
        """The configuration as JSON, less where the data lie and the fields named.

        Fields that came later are left out at their defaults, so that the digests of older records hold.
        """
        at_default = {name for name in _LATER_FIELDS if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump_json(exclude={"data_dir", *without, *at_default})


class Environment(_Model):
    """Where a cell ran. `machine` digests what is stable; the rest is for the reader."""

    machine: str
    """Digest of CPU model, core count, memory and GPU models: equal on equal machines."""
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    os: str
    python: str
    packages: dict[str, str]
    """Versions of torch, torchrec, fbgemm-gpu(-cpu), numpy, ..., by distribution name."""
    code: str
    """Digest of the source files of suite, systems and workloads."""
    system_code: str | None = None
    """Digest of the source files of a system given as `module:Class`. None: one of the suite's, or it was not found."""
    commit: str | None = None
    dirty: bool | None = None
    threads: int


class Timing(_Model):
    """Timed windows, one device synchronisation at each end."""

    window_s: tuple[float, ...]
    """Raw duration of every window."""
    window_steps: int
    steps_per_s: float
    """Median over windows."""
    samples_per_s: float
    data_s_per_step: float
    """Making one batch, or waiting until it was made, outside the clock; mean over all steps."""
    data_wait_s: float | None = None
    """Of all timed windows together, spent waiting for a batch. None in records older than this field."""
    batches_made: str | None = None
    """By whom batches were made, and when; see `suite.run.feed.Mode`."""
    producers: int | None = None
    """Processes beside the training process that made batches."""
    training_threads: int | None = None
    """Threads that the training process computed with on the host."""
    build_s: float
    verify_s: float
    evaluate_s: float
    total_s: float

    @property
    def data_wait_share(self) -> float | None:
        """Share of the timed windows spent waiting for batches."""
        return None if self.data_wait_s is None else self.data_wait_s / sum(self.window_s)


class Quality(_Model):
    """On the test split after training."""

    auroc: float
    accuracy: float
    samples: int
    best_auroc: float | None = None
    """Of the model that planted the labels, on the same test samples' stream; None where labels are real."""
    final_loss: float


class Memory(_Model):
    """Peaks over build and training. None where the machine cannot say: never 0."""

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_peak_rss_bytes: int
    host_baseline_rss_bytes: int
    """Resident after imports, before the model is built."""
    host_pss_bytes: int | None = None
    anatomy_bytes: dict[str, int]
    """The system's own account, keyed `tier/purpose`, e.g. `device/rows`."""


class Traffic(_Model):
    """Counted over `steps` steps of the same stream for every system. None: not known."""

    steps: int
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookup_misses: int | None = None
    bytes_fetched: int | None = None
    bytes_written_back: int | None = None
    overflow_batches: int = 0
    per_table: dict[str, tuple[int, int]] | None = None
    """Unique ids and unique misses by table, where known."""

    @property
    def hit_rate(self) -> float | None:
        """1 - unique misses / unique ids, before anything is fetched."""
        if self.unique_misses is None or not self.unique_ids:
            return None
        return 1 - self.unique_misses / self.unique_ids


class Check(_Model):
    """One verification: what was compared and how far apart the two sides were."""

    name: str
    passed: bool
    max_difference: float
    tolerance: float
    """0 demands bitwise equality."""
    detail: str = ""


class Verification(_Model):
    """All checks of a cell. A cell is verified when every one passed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether there was something to check and all of it held."""
        return bool(self.checks) and all(check.passed for check in self.checks)


class FrequencySource(_Model):
    """Where the frequencies came from that a system asked for."""

    prefix: float
    """Share of the training split, from its beginning."""
    samples: int
    """Samples that they are counted over, or expected in."""
    sketch_bytes: int | None = None
    """None: exact."""
    error_accesses: int = 0
    """Most by which a sketched count may be too low, over all tables; none is too high."""
    error_share: float = 0.0
    """The same relative to all accesses of the table, the largest over all tables."""


class Measurement(_Model):
    """What an `ok` cell measured (a `wrong_answer` one keeps its verification alone)."""

    placement: str
    offloads: bool
    timing: Timing
    quality: Quality
    memory: Memory
    traffic: Traffic
    epoch_s: float
    epoch_measured: bool
    """A whole epoch ran; otherwise the time is extrapolated from throughput."""
    frequencies: FrequencySource | None = None
    """None: the system asked for none (or the record is older than this field)."""


class Prediction(_Model):
    """What the cost model said of a cell before it ran; see `suite.advise`."""

    steps_per_s: float
    samples_per_s: float
    terms_s: dict[str, float]
    """Exposed seconds of a step by named cost; their sum is the step."""
    hidden_s: dict[str, float] = {}
    """Seconds that go on beside training, by named cost; of no account for the step."""
    hit_rate: float | None = None
    """Of the simulated cache; None where there is none."""
    calibrated_at: str
    """ISO 8601, UTC. The machine is the record's own."""


class Optimum(_Model):
    """The least that any cache of as many slots could have missed and moved in the counted steps; simulated."""

    slots: int
    steps: int
    unique_misses: int
    bytes_moved: int
    """Both ways."""


class Record(_Model):
    """One run of one cell."""

    schema_version: Literal[2] = SCHEMA_VERSION
    key: str
    """Digest of cell, code, packages and machine: a cell with a record of this key is done."""
    cell: Cell
    status: Status
    reason: str = ""
    """Why the status is not `ok`, with the remedy; empty otherwise."""
    phase: str = ""
    """The phase in which a failed cell ended."""
    started_at: str
    """ISO 8601, UTC."""
    wall_s: float
    notes: tuple[str, ...] = ()
    """What the harness changed or could not do, said aloud."""
    environment: Environment
    verification: Verification | None = None
    measurement: Measurement | None = None
    prediction: Prediction | None = None
    """None: predictions were switched off, or not possible, or the record is older than this field."""
    optimum: Optimum | None = None
    """None: the system has no cache, or predictions were switched off, or the record is older than this field."""
    prediction_missing: str = ""
    """Why there is no prediction or no optimum; empty where both are, neither was asked for, or the record is older."""


def record_key(cell: Cell, environment: Environment) -> str:
    """Digest under which a cell's record is found again: configuration, code, package versions and machine."""
    parts = [
        cell.identity(),
        environment.code,
        environment.machine,
        *(f"{name}={version}" for name, version in sorted(environment.packages.items())),
        environment.python,
        str(environment.threads),
        *([environment.system_code] if environment.system_code is not None else []),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
