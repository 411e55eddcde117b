"""A record of one run of one cell: its configuration, its environment and its measurements.

The models below are the schema of the JSON files under `results/`, and their validators the rules that hold whenever a
file is loaded; units end the field names.
"""

import enum
import hashlib
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, Self

from pydantic import Field

from suite.records.environment import VIRTUAL_DEVICE, Environment
from suite.records.measured import (
    AtLeastOne,
    BeladyBound,
    Broken,
    CgroupLimit,
    Conditions,
    DriveSpeed,
    FrequencySource,
    Memory,
    Model,
    Quality,
    Ranks,
    Timing,
    Traffic,
    Turns,
)
from systems.registry import CONTROLS

SCHEMA_VERSION: Final = 1
"""A change of the models that older records do not fit is a new version."""
LATEST: Final = 2**62  # the largest `sequence`


class Status(enum.StrEnum):
    """Every planned cell ends as exactly one of these, from harmless to worst; a system ends as its worst round did."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    OOM_DISK = "oom_disk"
    CRASHED = "crashed"
    WRONG_ANSWER = "wrong_answer"

    @property
    def good(self) -> bool:
        """Whether a run in which every cell ended so exits with 0."""
        return self in (Status.OK, Status.UNSUPPORTED)


class Cell(Model):
    """The configuration of a cell: system variant x workload x setting, and which round of it."""

    system: str
    """With its variant, e.g. `fbgemm_uvm_caching[policy=lfu]`."""
    workload: str
    data: Literal["synthetic", "real"]
    data_dir: str | None = None
    data_digest: str | None = None
    """Digest of the prepared dataset's manifest, for real data."""
    scale: str
    device: Literal["cpu", "cuda"]
    optimizer: str
    lr: float
    eps: float
    batch_size: AtLeastOne
    embedding_dim: AtLeastOne
    max_rows: int | None = None
    """Synthetic tables are capped alike so that all of them together hold about so many rows. None: published sizes."""
    bottom_mlp: tuple[int, ...]
    """Hidden widths of the bottom MLP, its output being `embedding_dim`."""
    top_mlp: tuple[int, ...]
    """Widths of the top MLP, the logit included."""
    cache_ratio: float | None = None
    device_budget_bytes: AtLeastOne | None = None
    host_budget_bytes: AtLeastOne | None = None
    """Memory that rows on a drive may take in all; None: the tables are not on a drive."""
    train_steps: int
    """Steps of the cell's own process before the counted ones."""
    counted_steps: AtLeastOne
    quality_points: int = 0
    """In how many parts of equal length quality is looked at while the cell trains."""
    evaluation_batches: int
    builds: AtLeastOne
    """Times that systems which take turns are built."""
    warmup_steps: int
    """Steps of every system after every build, before its turns."""
    turns: AtLeastOne
    """About how many turns every system has after every build: a group takes whole designs of orders."""
    turn_steps: AtLeastOne
    seed: int
    round: int = 0
    frequency_prefix: float = 1.0
    """Share of the training split, from its beginning, that frequencies for systems are taken from."""
    frequency_sketch_bytes: None = None
    """Null in every record: frequencies are exact. Digests of records include it."""
    ranks: int | None = None
    """Processes that share the tables, and a batch; None: one process without ranks."""
    nodes: Literal[1] = 1
    rendezvous: None = None
    """One machine in every record: ranks meet in a file."""
    tf32: bool = False
    """Dense layers multiply in TF32, which NVIDIA devices have from Ampere on, instead of fp32."""

    @property
    def steps(self) -> int:
        """Training steps of the cell's own process in all."""
        return self.train_steps + self.counted_steps

    @property
    def round_seed(self) -> int:
        """Seed of this round's stream, rows and dense weights: rounds differ by 1."""
        return self.seed + self.round

    @property
    def counts(self) -> bool:
        """Whether traffic is counted: once, in the first round."""
        return self.round == 0

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.system} x {self.workload}" + (f" #{self.round + 1}" if self.round else "")

    @property
    def setting(self) -> str:
        """Digest of everything but the system and the round: cells that share it are comparable."""
        return hashlib.sha256(self.identity("system", "round").encode()).hexdigest()[:12]

    def identity(self, *without: str) -> str:
        """The configuration as JSON, less where the data lie, and the fields named."""
        absent = {"host_budget_bytes": None, "ranks": None, "nodes": 1, "tf32": False}  # as in older records
        newer = {name for name, nothing in absent.items() if getattr(self, name) == nothing}
        return self.model_dump_json(exclude={"data_dir", "rendezvous", *newer, *without})


class Measurement(Model):
    """Measurements of a cell's own process: all but speed (a `wrong_answer` one keeps its verification alone)."""

    placement: str
    offloads: bool
    same_kernel_as: str | None = None
    """The system whose kernel on whose memory this one is here."""
    plain_table: str = "full_gpu"
    """The system that keeps all rows for the same kernel, without a cache."""
    sums_gradients: bool = True
    """Whether a row's gradients are summed before it is updated, so that it is rounded once a batch."""
    exact: bool = True
    """Whether it leaves the rows that plain training leaves, but for the order of sums."""
    prior_knowledge: str
    """Prior knowledge of the id stream: `nothing`, `the past`, `training frequencies`, ..."""
    shares_process: bool = True
    """Whether it may take turns in one process with others."""
    busy_between_steps: bool = False
    """Whether it works between its steps, so that its turns must be long."""
    timing: Timing | None
    """None: of a virtual device."""
    quality: Quality
    memory: Memory
    traffic: Traffic | None = None
    """None: counted in the first round alone."""
    drive: DriveSpeed | None = None
    """Speed of the drive that the rows are on; None: they are on none."""
    held: CgroupLimit | None = None
    """None: the system has no host budget, or keeps no rows on a drive."""
    epoch_samples: int
    """Samples of the training split."""
    frequencies: FrequencySource | None = None
    """None: the system asked for none."""
    ranks: Ranks | None = None
    """None: one process without ranks."""


class Check(Model):
    """One verification: what was compared and how far apart the two sides were."""

    name: str
    passed: bool
    max_difference: float
    tolerance: float
    """0 demands bitwise equality."""
    detail: str = ""

    def _broken(self, *, from_json: bool) -> Iterator[Broken]:
        if self.passed and not self.max_difference <= self.tolerance:
            yield ("passed",), f"is true with a difference of {self.max_difference}, {self.tolerance} allowed"

    @classmethod
    def of(cls, name: str, difference: float, allowed: float, *, detail: str = "") -> Self:
        """Check that a difference, which may be NaN or infinite, is at most `allowed`; `detail` is of a failure."""
        # a NaN must fail, and JSON has neither NaN nor infinity
        shown = sys.float_info.max if math.isnan(difference) else min(difference, sys.float_info.max)
        passed = shown <= allowed
        said = "" if passed else detail or f"differs by {difference:.3g}, allowed {allowed:.3g}"
        return cls(name=name, passed=passed, max_difference=shown, tolerance=allowed, detail=said)


class Verification(Model):
    """All checks of a cell. A cell is verified when every one passed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether there was something to check and all of it held."""
        return bool(self.checks) and all(check.passed for check in self.checks)


class Record(Model):
    """One run of one cell."""

    schema_version: Literal[1] = SCHEMA_VERSION
    key: str
    """Digest of cell, code, Python, packages, machine and threads: a cell with a record of this key is done."""
    cell: Cell
    status: Status
    reason: str = ""
    """Reason of a status that is not `ok`, with the remedy; empty otherwise."""
    phase: str = ""
    """The phase in which a failed cell ended."""
    started_at: str
    """ISO 8601, UTC."""
    sequence: int | None = Field(default=None, ge=0, le=LATEST)
    """Larger than that of any record that its results directory held when the cell started: microseconds since 1970,
    or one more than the largest there, where the clock has stepped back. None: the record is older than this field."""
    wall_s: float
    notes: tuple[str, ...] = ()
    """Changes that the harness made, and things that it could not do."""
    disturbed: tuple[str, ...] = ()
    """Interference: other load, or heat, while turns were taken, a sentence each."""
    conditions: Conditions | None = None
    """State of the machine while turns were taken. None: this system took none."""
    environment: Environment
    verification: Verification | None = None
    measurement: Measurement | None = None
    turns: Turns | None = None
    """None: not timed; `measurement.same_kernel_as` or a note says why."""
    optimum: BeladyBound | None = None
    """None: the system has no cache, or does not count its misses, or a note says why."""

    def _broken(self, *, from_json: bool) -> Iterator[Broken]:
        for rule in (self._identity, self._outcome, self._counts, self._times) if from_json else ():
            yield from rule()

    def _identity(self) -> Iterator[Broken]:
        if (key := record_key(self.cell, self.environment)) != self.key:
            found = f"found {self.key[:60]!r}, but cell, code, packages and machine give {key!r}"
            yield ("key",), f"{found}: somebody edited them; restore the file or measure it again"
        zone = None
        with suppress(ValueError):
            zone = datetime.fromisoformat(self.started_at).tzinfo
        if zone is None:
            yield ("started_at",), f"found {self.started_at[:60]!r}, expected a time in ISO 8601 with its zone"

    def _outcome(self) -> Iterator[Broken]:
        """Parts that do not go with the status: a system that failed in its turns keeps what its cell measured."""
        ok, checked = self.status is Status.OK, self.verification
        if not ok and (self.phase != "turns" or self.status is Status.WRONG_ANSWER):
            why = f"is there though the status is {self.status}: only ok has one, or a failure in turns"
            yield from (((name,), why) for name in ("measurement", "turns") if getattr(self, name) is not None)
        if ok and self.measurement is None:
            yield ("measurement",), "is missing though the status is ok"
        if ok and checked is None and self.cell.system.partition("[")[0] not in CONTROLS:
            yield ("verification",), "is missing though the status is ok"
        if ok and checked is not None and not checked.passed:
            yield ("verification",), "did not pass though the status is ok: it has to be wrong_answer"
        if self.status is Status.WRONG_ANSWER and (checked is None or checked.passed):
            yield ("verification",), "shows no failed check though the status is wrong_answer"

    def _counts(self) -> Iterator[Broken]:
        """Traffic, optimum and turns that are not of the steps and builds that the cell says."""
        cell, counted = self.cell, self.cell.counted_steps
        if self.measurement is not None:
            traffic = self.measurement.traffic
            if traffic is None and cell.counts:
                yield ("measurement", "traffic"), "is missing though the first round counts it"
            if traffic is not None and traffic.steps > counted:
                yield ("measurement", "traffic", "steps"), f"found {traffic.steps}, cell.counted_steps says {counted}"
        for name, value in (("first_step", cell.steps - counted), ("steps", counted)):
            found = getattr(self.optimum, name, value)
            if found != value:
                yield ("optimum", name), f"found {found}, the counted steps of cell give {value}"
        built = [] if self.turns is None else [*map(len, self.turns.system_s)]
        if len(built) > self.cell.builds:
            yield ("turns", "system_s"), f"found {len(built)} builds, cell.builds says {self.cell.builds}"
        if len({*built}) > 1:
            yield ("turns", "system_s"), f"found {built} turns, expected as many in every build"

    def _times(self) -> Iterator[Broken]:
        """Times of a virtual device, which mean nothing."""
        if self.on_virtual_device and self != self.untimed():
            remedy = "remove turns, conditions, timing and waits"
            yield (), f"has times though {self.environment.gpu} has no speed: {remedy}"

    @property
    def order(self) -> int:
        """Sorts records by age, within a results directory whatever its clock did, between directories by the clock."""
        if self.sequence is not None:
            return self.sequence
        return int(1e6 * datetime.fromisoformat(self.started_at).timestamp())

    @property
    def lacks_turns(self) -> bool:
        """Whether turns of a build are missing: none were taken, or they were interrupted."""
        return self.turns is None or len(self.turns.system_s) < self.cell.builds

    def checked(self, checks: tuple[Check, ...], *, phase: str, reason: str) -> Self:
        """The record with these checks; if one failed, a `wrong_answer` of which nothing else is kept."""
        found = Verification(checks=checks)
        if found.passed:
            return self.model_copy(update={"verification": found})
        wrong = {"status": Status.WRONG_ANSWER, "reason": reason, "phase": phase, "measurement": None, "turns": None}
        return self.model_copy(update={"verification": found, **wrong})

    @property
    def on_virtual_device(self) -> bool:
        """Whether a virtual device computed: answers, counts and bytes hold, and no time means anything."""
        return self.cell.device == "cuda" and self.environment.gpu == VIRTUAL_DEVICE

    def untimed(self) -> Self:
        """The record without what was timed, all but how long it took in all."""
        measured = self.measurement
        if measured is not None:
            waits = dict.fromkeys(("planning_wait_s", "fetch_wait_s", "write_back_wait_s"))
            traffic = measured.traffic and measured.traffic.model_copy(update=waits)
            measured = measured.model_copy(update={"timing": None, "traffic": traffic})
        return self.model_copy(update={"measurement": measured, "turns": None, "conditions": None, "disturbed": ()})


def record_key(cell: Cell, environment: Environment) -> str:
    """Digest under which a cell's record is found again: configuration, code, versions, machine and threads."""
    packages = (f"{name}={version}" for name, version in sorted(environment.packages.items()))
    own_code = [] if environment.system_code is None else [environment.system_code]
    parts = [cell.identity(), environment.code, environment.machine, *packages, environment.python]
    return hashlib.sha256("\n".join([*parts, str(environment.threads), *own_code]).encode()).hexdigest()[:16]
