"""The parts of what a cell measures, and what all parts of a record have in common."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

AtLeastOne = Annotated[int, Field(ge=1)]
"""Steps, sizes and the like: others are divided by them."""
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Plausible = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
"""Seconds, or a pace: tables take logarithms of them, and exponentials of means and intervals of these."""
Broken = tuple[tuple[str | int, ...], str]
"""A rule that is broken: the fields and indices that lead to the value, and what is wrong."""
EVERY_FIELD: Final = {"every_field": True}
"""Validation context in which fields with a default have to be there too: the suite writes every field."""


class Model(BaseModel):
    """A part of a record: never changed once it is made, and without fields that nobody declared."""

    # a loss can diverge: NaN must survive JSON
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    @model_validator(mode="after")
    def _holds(self, info: ValidationInfo) -> Self:
        fields = type(self).model_fields if info.context == EVERY_FIELD else ()
        missing = [((name,), "Field required") for name in fields if name not in self.model_fields_set]
        errors = [
            InitErrorDetails(type=PydanticCustomError("rule", "{what}", {"what": what}), loc=place, input=None)
            for place, what in missing or self._broken(from_json=info.mode == "json")
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def _broken(self, *, from_json: bool) -> Iterable[Broken]:
        """Rules that its values break. A run puts its records together part by part, a file has whole ones."""
        return ()


class Timing(Model):
    """Batches and pace of a cell in its own process. Throughput is not here: see `Turns`."""

    data_s_per_step: float
    """Making one batch, or waiting until it was made, outside the training clock; mean over all steps."""
    batches_made: str
    """The maker of batches, and when it makes them; see `suite.run.cell.feed`."""
    producers: int
    training_threads: int
    alone_steps_per_s: Plausible | None = None
    """Pace of the last two thirds of training, by which the steps of a turn are chosen: the median over runs of steps.
    It is minutes before the turns, between which a machine drifts: see `Turns.alone_s`. None: older."""


class QualityPoint(Model):
    """Quality in a part of training, up to a number of samples: every sample is scored before it is trained on."""

    samples: int
    """Trained on by the end of the part."""
    loss: float
    auroc: Share | None
    """Over the part; None where all its labels are equal."""


class Quality(Model):
    """On the test split after training."""

    auroc: Share
    accuracy: Share
    samples: int
    best_auroc: Share | None = None
    """AUROC of the model that planted the labels, on the same test samples' stream; None where labels are real."""
    final_loss: float
    points: tuple[QualityPoint, ...] = ()
    """Quality in each part of training, in order."""


class Memory(Model):
    """Peaks over build and training, but where it says otherwise. None where the machine cannot say: never 0."""

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    """Used by this process after training, its CUDA context included, as NVML says."""
    host_peak_rss_bytes: int
    host_baseline_rss_bytes: int
    """Resident after imports, before the model is built."""
    anatomy_bytes: dict[str, int]
    """The system's own account, keyed `tier/purpose`, e.g. `device/rows`."""


class Traffic(Model):
    """Counted over `steps` steps of the same stream for every system. None: not known."""

    steps: AtLeastOne
    lookups: Count | None = None
    unique_ids: Count | None = None
    unique_misses: Count | None = None
    lookup_misses: Count | None = None
    bytes_fetched: Count | None = None
    bytes_written_back: Count | None = None
    rows_from_ram: Count | None = None
    overflow_batches: Count = 0
    late_batches: Count | None = None
    planning_wait_s: float | None = None
    fetch_wait_s: float | None = None
    write_back_wait_s: float | None = None
    """Seconds that the training thread waited for plans, reads and write-backs, or took to do them itself."""
    per_table: dict[str, tuple[int, int]] | None = None
    """Unique ids and unique misses by table, where known."""

    def _broken(self, *, from_json: bool) -> Iterator[Broken]:
        counted = {name: value for name, value in self if isinstance(value, int)}
        for fewer, more in (("unique_misses", "unique_ids"), ("unique_ids", "lookups"), ("lookup_misses", "lookups")):
            if fewer in counted and more in counted and counted[fewer] > counted[more]:
                yield (fewer,), f"found {counted[fewer]}, more than the {counted[more]} of {more}"
        tables = self.per_table or {}
        for table, (unique, misses) in tables.items():
            if not 0 <= misses <= unique:
                yield ("per_table", table), f"found {misses} misses of {unique} unique ids"
        for name, column in (("unique_ids", 0), ("unique_misses", 1)):
            total = sum(pair[column] for pair in tables.values())
            if self.per_table is not None and name in counted and counted[name] != total:
                yield (name,), f"found {counted[name]}, the tables of per_table add up to {total}"

    @property
    def bytes_moved(self) -> int | None:
        """Both ways; None where either is not known."""
        if self.bytes_fetched is None or self.bytes_written_back is None:
            return None
        return self.bytes_fetched + self.bytes_written_back

    @property
    def hit_rate(self) -> float | None:
        """1 - unique misses / unique ids, before anything is fetched."""
        if self.unique_misses is None or not self.unique_ids:
            return None
        return 1 - self.unique_misses / self.unique_ids


class FrequencySource(Model):
    """Source of the frequencies that a system asked for."""

    prefix: float
    """Share of the training split, from its beginning."""
    samples: int
    """Samples that they are counted over, or expected in."""


class DriveSpeed(Model):
    """Random reads that the drive gives, past the page cache, measured in the directory of the tables."""

    file_system: str
    """Kind, such as `ext4`."""
    read_bytes: AtLeastOne
    """Size of every read."""
    reads_per_s_depth_1: Plausible
    """One after the other."""
    reads_per_s_depth_32: Plausible
    """32 at a time."""
    measured_by: str
    """`fio 3.36`, or the suite itself."""


class CgroupLimit(Model):
    """The control group that held a process to its host budget."""

    how: str
    """`memory control group, version 2`, say."""
    without_rows_bytes: int
    """The most that training the same model took before there were more than a few hundred rows of a table."""
    limit_bytes: int
    """Limit of the group: `without_rows_bytes` and the budget."""
    peak_bytes: int | None
    """Most that was in use, page cache included. None: the kernel does not say."""


class RankShare(Model):
    """One rank. Counts are of the counted steps; None where a system does not know.

    A rank's lookups are those that it was sent, as the owner of their rows.
    """

    table_bytes: int
    """Bytes of its rows and their optimizer state, in whatever tier they all are."""
    device_bytes: int
    """Bytes of its rows and state on the device (on a CPU, in the RAM that plays its part), by the system's account."""
    host_peak_rss_bytes: int
    device_reserved_bytes: int | None = None
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    ids_bytes: int | None
    """Ids and lengths of bags that it sent to other ranks; None: they were all sent ahead of these steps."""
    pooled_bytes: int
    """Pooled vectors that it sent to other ranks, and their gradients."""


class Ranks(Model):
    """All ranks of a cell."""

    backend: Literal["gloo", "nccl"]
    steps: AtLeastOne
    """Counted, over which bytes and lookups are sums."""
    shares: tuple[RankShare, ...]
    """Shares of the ranks, in order."""


class BeladyBound(Model):
    """The least that any cache of as many slots could have missed and moved in the counted steps; simulated.

    Its horizon: it knows all ids of the cell, counts the misses of the last `steps` steps alone, and starts these with
    the best rows that a cache could hold by then: any that an earlier step used, and any of the most frequent rows.
    """

    slots: int
    bypasses: bool
    """A missing row may be used without taking a slot, as by the system itself."""
    first_step: int
    """The first step whose misses count; the cell's first step is 0."""
    steps: AtLeastOne
    unique_misses: int
    bytes_moved: int
    """Both ways."""


Times = Annotated[tuple[Annotated[tuple[Plausible, ...], Field(min_length=1)], ...], Field(min_length=1)]
"""Seconds of every turn, by build."""


class DriveTraffic(Model):
    """Bytes that a process read from and wrote to drives in some steps, without reads that the page cache answers."""

    steps: AtLeastOne
    read_bytes: int
    written_bytes: int
    rows_read: int | None = None
    """Rows that the system asked its file for; None: it does not know."""


Isolation = Literal["one process", "own process", "several groups", "alone"]
"""Where a system took turns: with all others, in a process of its own beside theirs, with the baseline and some
others, or by itself."""


class Turns(Model):
    """A system's times from a contest: systems train the same batches in turns, a few steps each."""

    contest: str
    """Equal for the systems that took turns with each other."""
    way: Isolation
    steps: AtLeastOne
    """Steps per turn."""
    system_s: Times
    """Seconds of every turn, by build; one device synchronisation at each end of a turn."""
    baseline: str | None = None
    baseline_s: Times | None = None
    """Times of the baseline in the same turns; in the baseline's record, of its repeat, a participant of its own."""
    losses: Literal["equal", "not compared"] = "not compared"
    """With the baseline's at the end of every turn, bit for bit."""
    data_wait_s: float = 0.0
    """Seconds of all turns together that went by waiting for a batch."""
    embedding_s: Times | None = None
    """Seconds of further turns of as many steps without the MLPs; None: there were none."""
    baseline_embedding_s: Times | None = None
    alone_s: Times | None = None
    """Seconds of further turns with nobody between them and the system's turns before; None: there were none."""
    baseline_alone_s: Times | None = None
    alone_behind: tuple[Count, ...] | None = None
    """Of each of these turns of a build: which of the system's turns it stands right behind, from 0. None: there were
    none, or they stand in one row or two of all systems, as in older records."""
    drive: DriveTraffic | None = None
    """In the turns of `system_s`; None: no rows are on a drive."""
    embedding_drive: DriveTraffic | None = None
    """In the turns of `embedding_s`."""

    def _broken(self, *, from_json: bool) -> Iterator[Broken]:
        if (self.baseline_s is None) != (self.baseline is None):
            yield ("baseline",), f"found {self.baseline!r}, which does not go with baseline_s"
        for name in ("system_s", "embedding_s", "alone_s"):
            other = "baseline_s" if name == "system_s" else f"baseline_{name}"
            times, beside = getattr(self, name), getattr(self, other)
            if beside is not None and (times is None or list(map(len, beside)) != list(map(len, times))):
                yield (other,), f"has other builds or turns than {name}: both are of the same turns"
            if times is not None and len(times) != len(self.system_s):
                yield (name,), f"has {len(times)} builds, system_s has {len(self.system_s)}"
        behind = self.alone_behind
        if behind is not None:
            if any(len(build) != len(behind) for build in self.alone_s or [()]):
                yield ("alone_behind",), f"has {len(behind)} turns, alone_s has another number of runs"
            if max(behind, default=0) >= min(map(len, self.system_s)):
                yield ("alone_behind",), f"found turn {max(behind)}, which a build of system_s does not have"


class MachineState(Model):
    """The machine just before the turns, or just after them. None: the machine does not say."""

    load: float | None = None
    """Processes that computed or waited for a disk, on average over the last minute. The run itself counts too."""
    cpu_throttled: int | None = None
    """Times that heat has slowed down a core since the machine started, over all cores."""
    gpu_throttled_s: float | None = None
    """Seconds that heat has held back the GPU's clock since the driver was loaded."""
    gpu_processes: int | None = None
    """Processes of others that have the GPU."""


class Conditions(Model):
    """The machine around the turns."""

    start: MachineState
    end: MachineState
    others_cpu_share: float | None = None
    """Share of the CPUs' time from start to end that other processes took, over the CPUs that the run may use. None: an
    older record in which a system failed."""
    stolen_cpu_share: float | None = None
    """Share of that time that a hypervisor gave to other guests."""
