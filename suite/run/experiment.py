"""One cell, top to bottom: support, verify, build, warm up, timed windows, count, evaluate."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Protocol

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from suite.records.record import Cell, FrequencySource, Measurement, Memory, Quality, Timing, Traffic, Verification
from suite.records.status import Status
from suite.run import memory_probes
from suite.run.feed import Feed, FeedPlan, open_feed, plan_feed, usable_cores
from suite.run.messages import Outcome
from suite.run.stream import open_workload
from suite.run.training import Run, Trainer, load_initial_rows, tables_of
from suite.run.verify import verify
from systems import registry
from systems.contract import (
    Budget,
    CacheRatio,
    DeviceBytes,
    EmbeddingSystem,
    OptimizerKind,
    SparseOptimizer,
    Support,
    SystemSpec,
    Tier,
    Verdict,
)
from workloads.batch import Split, Workload
from workloads.dlrm import build_dlrm
from workloads.frequency import prefix_of, sketched

_STATUS_OF_VERDICT = {
    Verdict.UNSUPPORTED: Status.UNSUPPORTED,
    Verdict.UNAVAILABLE: Status.UNAVAILABLE,
    Verdict.INFEASIBLE: Status.INFEASIBLE,
}


class Reporter(Protocol):
    """Where progress goes."""

    def phase(self, name: str) -> None:
        """A new phase begins."""

    def beat(self, step: int = 0, steps: int = 0, steps_per_s: float | None = None) -> None:
        """The phase goes on."""


def run_cell(cell: Cell, reporter: Reporter) -> Outcome:
    """Run one cell in this process, from support to evaluation."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    phases = _Phases(reporter)
    with phases("support"):
        variant = registry.Variant.parse(cell.system)
        system_class = registry.load(variant)
        workload = open_workload(cell)
        frequencies = LazyFrequencies(workload, cell=cell, beat=reporter.beat)
        spec = spec_of(cell, variant, system_class, workload, frequencies)
        support = _machine_support(system_class, spec)
    if support.verdict is not Verdict.YES:
        return Outcome(status=_STATUS_OF_VERDICT[support.verdict], reason=support.reason)
    verification: Verification | None = None
    notes: tuple[str, ...] = ()
    if variant.name in registry.CONTROLS:
        notes = ("a control, not a system: not verified, not ranked",)
    else:
        with phases("verify"):
            verification = verify(system_class, spec=spec, workload=workload, seed=cell.seed, beat=reporter.beat)
        if not verification.passed:
            return Outcome(status=Status.WRONG_ANSWER, reason=_first_failure(verification), verification=verification)
    baseline_bytes = memory_probes.rss_bytes()
    if not memory_probes.reset_peaks(spec.device):
        notes += ("the peak of host memory could not be reset and includes imports and verification",)
    plan = _feed_plan(cell, spec)
    torch.set_num_threads(plan.threads)
    reopen = partial(open_workload, cell)
    pin_memory = spec.device.type == "cuda"
    with open_feed(plan, workload, reopen=reopen, total=cell.steps, pin_memory=pin_memory) as feed:
        with phases("build"):
            system, trainer = _build(cell, spec, system_class, workload=workload, feed=feed, reporter=reporter)
        measurement = _measured(
            cell,
            system=system,
            trainer=trainer,
            workload=workload,
            plan=plan,
            frequencies=frequencies,
            baseline_bytes=baseline_bytes,
            phases=phases,
            reporter=reporter,
        )
    return Outcome(status=Status.OK, verification=verification, measurement=measurement, notes=notes)


def _feed_plan(cell: Cell, spec: SystemSpec) -> FeedPlan:
    return plan_feed(
        device=cell.device,
        lookups=cell.steps * spec.batch_lookups,
        cores=usable_cores(),
        threads=torch.get_num_threads(),
    )


def _measured(
    cell: Cell,
    *,
    system: EmbeddingSystem,
    trainer: Trainer,
    workload: Workload,
    plan: FeedPlan,
    frequencies: LazyFrequencies,
    baseline_bytes: int,
    phases: _Phases,
    reporter: Reporter,
) -> Measurement:
    """Warm up, time, count and evaluate."""
    with phases("warm up"):
        warm_up = trainer.run(cell.warmup_steps, on_step=lambda step: reporter.beat(step, cell.warmup_steps))
    with phases("train"):
        windows = _timed_windows(cell, trainer, reporter)
    used = _memory(system, baseline_bytes)  # before counting, whose sorts take memory of their own
    with phases("count"):
        system.count_traffic(True)
        system.reset_counters()
        counted = trainer.run(cell.counted_steps, on_step=lambda step: reporter.beat(step, cell.counted_steps))
        traffic = _traffic(system, cell.counted_steps)
        system.count_traffic(False)
    if not math.isfinite(counted.loss):
        raise FloatingPointError(f"the loss is {counted.loss} after {cell.steps} steps: lower --lr")
    with phases("evaluate"):
        quality = _evaluate(cell, trainer, workload, reporter, final_loss=counted.loss)
    runs = [warm_up, *windows, counted]
    timing = _timing(cell, runs=runs, windows=windows, plan=plan, phases=phases)
    whole_epoch = cell.steps == workload.batches(Split.TRAIN)
    return Measurement(
        placement=system.placement.label,
        offloads=system.placement.offloads,
        timing=timing,
        quality=quality,
        memory=used,
        traffic=traffic,
        epoch_s=sum(r.duration_s for r in runs) if whole_epoch else workload.epoch_rows() / timing.samples_per_s,
        epoch_measured=whole_epoch,
        frequencies=frequencies.source,
    )


class _Phases:
    """Announces phases and keeps how long each took."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._reporter.phase(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - start

    def seconds(self, name: str) -> float:
        """Duration of a phase; 0 for one that did not take place."""
        return self._seconds.get(name, 0.0)

    @property
    def total_s(self) -> float:
        """Since the first phase."""
        return time.perf_counter() - self._start


def _build(
    cell: Cell,
    spec: SystemSpec,
    system_class: type[EmbeddingSystem],
    *,
    workload: Workload,
    feed: Feed,
    reporter: Reporter,
) -> tuple[EmbeddingSystem, Trainer]:
    system = system_class(spec)
    load_initial_rows(system, seed=cell.seed, on_chunk=reporter.beat)
    model = build_dlrm(
        system,
        dense_columns=workload.dense_columns,
        embedding_dim=cell.embedding_dim,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=cell.seed,
        device=spec.device,
    )
    return system, Trainer(model, system, feed=feed, total_steps=cell.steps, on_batch=reporter.beat)


class LazyFrequencies(Mapping[str, Tensor]):
    """Frequencies that are counted when a system first asks: at full scale they take seconds and gigabytes.

    Attributes:
        source: Where they came from; None as long as nobody asked.
    """

    def __init__(self, workload: Workload, *, cell: Cell, beat: Callable[[], None] = lambda: None) -> None:
        self._workload = workload
        self._prefix = cell.frequency_prefix
        self._sketch_bytes = cell.frequency_sketch_bytes
        self._beat = beat
        self._counted: Mapping[str, Tensor] | None = None
        self.source: FrequencySource | None = None

    def _all(self) -> Mapping[str, Tensor]:
        if self._counted is None:
            self._counted = self._exact() if self._sketch_bytes is None else self._sketched(self._sketch_bytes)
        return self._counted

    def _exact(self) -> Mapping[str, Tensor]:
        counted = self._workload.frequencies(self._prefix)
        samples = prefix_of(self._workload.epoch_rows(), self._prefix)
        self.source = FrequencySource(prefix=self._prefix, samples=samples)
        return counted

    def _sketched(self, memory_bytes: int) -> Mapping[str, Tensor]:
        found = sketched(self._workload, prefix=self._prefix, memory_bytes=memory_bytes, on_batch=self._beat)
        self.source = FrequencySource(
            prefix=self._prefix,
            samples=found.samples,
            sketch_bytes=memory_bytes,
            error_accesses=max(found.error.values()),
            error_share=max(error / max(1, found.lookups[name]) for name, error in found.error.items()),
        )
        return found.accesses

    def __getitem__(self, table: str) -> Tensor:
        return self._all()[table]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._workload.tables)

    def __len__(self) -> int:
        return len(self._workload.tables)


def spec_of(
    cell: Cell,
    variant: registry.Variant,
    system_class: type[EmbeddingSystem],
    workload: Workload,
    frequencies: LazyFrequencies,
) -> SystemSpec:
    """What a cell asks of its system. Raises `ValueError`: it has neither a cache ratio nor a device budget."""
    budget: Budget
    if cell.device_budget_bytes is not None:
        budget = DeviceBytes(total_bytes=cell.device_budget_bytes)
    elif cell.cache_ratio is not None:
        budget = CacheRatio(ratio=cell.cache_ratio)
    else:
        raise ValueError("a cell needs a cache ratio or a device budget")
    tables = tables_of(workload, cell.embedding_dim)
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=OptimizerKind(cell.optimizer), lr=cell.lr, eps=cell.eps),
        device=torch.device(cell.device),
        budget=budget,
        batch_lookups=workload.batch_lookups,
        frequencies=frequencies,
        parameters=registry.resolved_parameters(variant, system_class),
    )


def _machine_support(system_class: type[EmbeddingSystem], spec: SystemSpec) -> Support:
    """What the system says, then whether this machine holds what the system needs at least."""
    support = system_class.support(spec)
    if support.verdict is not Verdict.YES:
        return support
    needed = dict(system_class.required_bytes(spec))
    if spec.device.type == "cpu":
        needed = {Tier.HOST: sum(needed.values())}
    room = {Tier.HOST: memory_probes.available_host_bytes()}
    if spec.device.type == "cuda":
        room[Tier.DEVICE] = memory_probes.total_device_bytes(spec.device)
    for tier, available in room.items():
        wanted = needed.get(tier, 0)
        if wanted > available:
            return Support(
                Verdict.INFEASIBLE,
                f"needs at least {wanted / 1e9:.1f} GB of {tier} memory, this machine has {available / 1e9:.1f} GB "
                "to give: use a smaller --scale or --embedding-dim",
            )
    return support


def _timed_windows(cell: Cell, trainer: Trainer, reporter: Reporter) -> list[Run]:
    windows: list[Run] = []
    total = cell.windows * cell.window_steps
    for window in range(cell.windows):
        done = window * cell.window_steps
        rate = windows[-1].steps / windows[-1].duration_s if windows else None

        def beat(step: int, done: int = done, rate: float | None = rate) -> None:
            reporter.beat(done + step, total, rate)

        windows.append(trainer.run(cell.window_steps, on_step=beat))
    return windows


def _timing(cell: Cell, *, runs: Sequence[Run], windows: Sequence[Run], plan: FeedPlan, phases: _Phases) -> Timing:
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


def _memory(system: EmbeddingSystem, baseline_bytes: int) -> Memory:
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


def _traffic(system: EmbeddingSystem, steps: int) -> Traffic:
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


def _evaluate(cell: Cell, trainer: Trainer, workload: Workload, reporter: Reporter, *, final_loss: float) -> Quality:
    auroc, accuracy = BinaryAUROC(), BinaryAccuracy()
    if not workload.batches(Split.TEST):  # a test split smaller than one training batch
        workload = open_workload(cell, whole_split=Split.TEST)
    batches = min(cell.evaluation_batches, workload.batches(Split.TEST))
    for index in range(batches):
        batch = workload.batch(index, Split.TEST)
        scores = trainer.logits(batch).sigmoid().cpu()
        auroc.update(scores, batch.labels.int())
        accuracy.update(scores, batch.labels.int())
        reporter.beat(index + 1, batches)
    return Quality(
        auroc=float(auroc.compute()),
        accuracy=float(accuracy.compute()),
        samples=batches * workload.batch_size,
        best_auroc=workload.best_auroc,
        final_loss=final_loss,
    )


def _first_failure(verification: Verification) -> str:
    failed = [check for check in verification.checks if not check.passed]
    if not failed:
        return "no check applies to this system on this device"
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].name}: {failed[0].detail}{more}"
