"""Rounds merged into rows: one per system of a comparison group, in raw numbers and SI units."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.record import Check, Measurement, Optimum, Record, Traffic
from suite.records.status import Status
from suite.tables.statistics import Estimate, paired_ratio, samples_per_s_by_round

QUALITY_TOLERANCE = 1e-9
"""AUROC and accuracy may differ by so much between rounds, which train alike, before the table says so."""

WAIT_SHARE = 0.02
"""Of the timed windows, above which waiting for batches is said beside the numbers."""

SEVERITY = (
    Status.OK,
    Status.UNSUPPORTED,
    Status.UNAVAILABLE,
    Status.INFEASIBLE,
    Status.INTERRUPTED,
    Status.TIMEOUT,
    Status.OOM_DEVICE,
    Status.OOM_HOST,
    Status.OOM_DISK,
    Status.CRASHED,
    Status.WRONG_ANSWER,
)
"""From harmless to worst: a system's status is the worst of its rounds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system's rounds merged. None: does not exist, or is not known; never 0.

    Attributes:
        rounds: Rounds with a record.
        measured_rounds: Of these, the rounds that the numbers come from.
        steps_per_s, samples_per_s, epoch_s: Median over rounds.
        device_allocated_bytes, device_reserved_bytes, host_peak_rss_bytes: Largest peak of any round.
        ratio, ratio_low, ratio_high: Speed relative to the all-on-device baseline, paired by round, 95 % interval.
        unique_ids, unique_misses, lookups, lookup_misses: Summed over rounds.
        device_rows_bytes, ...: The system's own account of its device memory.
        misses_over_optimum, bytes_over_minimum: Relative to the least that any cache of as many slots could miss and
            move in the same steps.
        verified: `bitwise`, `within <tolerance>`, `no`; None where the cell failed before it was verified.
        notes: What the reader has to know beside the numbers.
    """

    system: str
    auroc: float | None = None
    accuracy: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
    epoch_measured: bool | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    hit_rate: float | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookups: int | None = None
    lookup_misses: int | None = None
    fetched_bytes_per_step: float | None = None
    written_back_bytes_per_step: float | None = None
    device_rows_bytes: int | None = None
    device_state_bytes: int | None = None
    device_index_bytes: int | None = None
    device_staging_bytes: int | None = None
    misses_over_optimum: float | None = None
    bytes_over_minimum: float | None = None
    verified: str | None = None
    placement: str | None = None
    offloads: bool | None = None
    rounds: int
    measured_rounds: int
    status: Status
    reason: str = ""
    phase: str = ""
    notes: tuple[str, ...] = ()


def merged_rows(group: Group) -> list[Row]:
    """One row per system of a group, reference and baseline first, then by name."""
    baseline = next((runs for name, runs in group.rounds_by_system.items() if is_baseline(name)), ())
    return [_merge(runs, baseline) for runs in group.rounds_by_system.values()]


def _merge(runs: Sequence[Record], baseline: Sequence[Record]) -> Row:
    worst = max(runs, key=lambda record: SEVERITY.index(record.status))
    measurements = trusted(runs)
    common: dict[str, Any] = {
        "system": runs[0].cell.system,
        "rounds": len(runs),
        "measured_rounds": len(measurements),
        "status": worst.status,
        "reason": worst.reason,
        "phase": worst.phase,
        "verified": _verified(runs),
        "notes": _notes(runs, measurements),
    }
    if not measurements:
        return Row(**common)
    ratio = _ratio(runs, baseline)
    return Row(
        **common,
        auroc=_median(measurements, lambda m: m.quality.auroc),
        accuracy=_median(measurements, lambda m: m.quality.accuracy),
        steps_per_s=_median(measurements, lambda m: m.timing.steps_per_s),
        samples_per_s=_median(measurements, lambda m: m.timing.samples_per_s),
        epoch_s=_median(measurements, lambda m: m.epoch_s),
        epoch_measured=all(m.epoch_measured for m in measurements),
        device_allocated_bytes=_largest(m.memory.device_allocated_bytes for m in measurements),
        device_reserved_bytes=_largest(m.memory.device_reserved_bytes for m in measurements),
        host_peak_rss_bytes=_largest(m.memory.host_peak_rss_bytes for m in measurements),
        ratio=ratio.value if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        **_traffic([m.traffic for m in measurements]),
        device_rows_bytes=_device_bytes(measurements, "rows"),
        device_state_bytes=_device_bytes(measurements, "state"),
        device_index_bytes=_device_bytes(measurements, "index"),
        device_staging_bytes=_device_bytes(measurements, "staging"),
        misses_over_optimum=_over(runs, lambda traffic: traffic.unique_misses, lambda best: best.unique_misses),
        bytes_over_minimum=_over(runs, bytes_moved, lambda best: best.bytes_moved),
        placement=" / ".join(dict.fromkeys(m.placement for m in measurements)),
        offloads=all(m.offloads for m in measurements),
    )


def trusted(runs: Sequence[Record]) -> tuple[Measurement, ...]:
    """Measurements of a system's rounds; none where one gave a wrong answer: no number of such a system is printed."""
    if any(run.status is Status.WRONG_ANSWER for run in runs):
        return ()
    return tuple(run.measurement for run in runs if run.measurement is not None)


def failure(ended: Row | Record) -> str:
    """How a system, or one round of it, ended that is not ok, and why."""
    where = f" in phase {ended.phase}" if ended.phase else ""
    return f"{ended.status.value}{where}: {one_line(ended.reason) or 'no reason was recorded'}"


def _ratio(runs: Sequence[Record], baseline: Sequence[Record]) -> Estimate | None:
    if is_baseline(runs[0].cell.system) and runs[0].cell.system == baseline[0].cell.system:
        # Of the baseline to itself there is nothing to estimate.
        return Estimate(value=1.0, low=None, high=None, rounds=len(runs))
    if any(run.status is Status.WRONG_ANSWER for run in baseline):
        return None
    return paired_ratio(samples_per_s_by_round(runs), samples_per_s_by_round(baseline))


def _traffic(counted: Sequence[Traffic]) -> dict[str, Any]:
    steps = sum(traffic.steps for traffic in counted)
    totals = {
        name: total(getattr(traffic, name) for traffic in counted)
        for name in ("unique_ids", "unique_misses", "lookups", "lookup_misses")
    }
    fetched = total(traffic.bytes_fetched for traffic in counted)
    written_back = total(traffic.bytes_written_back for traffic in counted)
    ids, misses = totals["unique_ids"], totals["unique_misses"]
    return totals | {
        "hit_rate": 1 - misses / ids if ids and misses is not None else None,
        "fetched_bytes_per_step": fetched / steps if steps and fetched is not None else None,
        "written_back_bytes_per_step": written_back / steps if steps and written_back is not None else None,
    }


def bytes_moved(traffic: Traffic) -> int | None:
    """Both ways; None where either is not known."""
    if traffic.bytes_fetched is None or traffic.bytes_written_back is None:
        return None
    return traffic.bytes_fetched + traffic.bytes_written_back


def _over(
    runs: Sequence[Record], counted: Callable[[Traffic], int | None], least: Callable[[Optimum], int]
) -> float | None:
    """Median over rounds of what was counted per step, relative to the least possible."""
    ratios = []
    for run in runs:
        if run.measurement is None or run.optimum is None:
            continue
        found, best = counted(run.measurement.traffic), least(run.optimum)
        if found is not None and best:
            ratios.append(found / run.measurement.traffic.steps * run.optimum.steps / best)
    return statistics.median(ratios) if ratios else None


def _verified(runs: Sequence[Record]) -> str | None:
    verifications = [run.verification for run in runs if run.verification is not None]
    if not all(verification.passed for verification in verifications):
        return "no"
    if any(run.status is Status.OK and run.verification is None for run in runs):
        return "no"
    if not verifications:
        return None
    if base_name(runs[0].cell.system) == REFERENCE:
        return "is the reference"
    return _distance([check for verification in verifications for check in verification.checks], runs[0].cell.optimizer)


def _distance(checks: Sequence[Check], optimizer: str) -> str:
    """How far from the reference the cell's own optimizer came; the other optimizers' checks only pass or fail."""
    own = [check for check in checks if check.name.startswith(f"{optimizer}:")] or checks
    difference = max(check.max_difference for check in own)
    return "bitwise" if difference == 0 else f"within {difference:.0e}"


def _notes(runs: Sequence[Record], measurements: Sequence[Measurement]) -> tuple[str, ...]:
    notes = [one_line(note) for run in runs for note in run.notes]
    disturbed = [run for run in runs if run.disturbed]
    if disturbed:
        rounds = f" in {len(disturbed)} of {len(runs)} rounds" if len(runs) > 1 else ""
        worst = max(disturbed, key=_others_share)
        notes.append(f"disturbed{rounds}: {one_line('; '.join(worst.disturbed))}")
    if 0 < len(measurements) < len(runs):
        notes.append(f"numbers come from {len(measurements)} of {len(runs)} rounds")
    for name in ("auroc", "accuracy"):
        values = [getattr(m.quality, name) for m in measurements]
        if values and max(values) - min(values) > QUALITY_TOLERANCE:
            label = "AUROC" if name == "auroc" else name
            notes.append(
                f"{label} differs by up to {max(values) - min(values):.2g} between rounds; the median is shown"
            )
    overflow = sum(m.traffic.overflow_batches for m in measurements)
    if overflow:
        notes.append(f"{overflow} counted batches had more distinct rows than the cache has slots")
    waits = [share for m in measurements if (share := m.timing.data_wait_share) is not None]
    if waits and max(waits) > WAIT_SHARE:
        notes.append(
            f"up to {100 * max(waits):.1f} % of the timed windows went by waiting for batches: the system is faster "
            "than the table says"
        )
    return tuple(dict.fromkeys(notes))


def _others_share(run: Record) -> float:
    return (run.conditions.others_cpu_share if run.conditions is not None else None) or 0.0


def one_line(text: str) -> str:
    """Text without line breaks, for tables and lists."""
    return " ".join(text.split())


def _median(measurements: Sequence[Measurement], value: Callable[[Measurement], float]) -> float:
    return statistics.median(value(measurement) for measurement in measurements)


def _device_bytes(measurements: Sequence[Measurement], purpose: str) -> int | None:
    """Device bytes for a purpose: 0 where a system on the device needs none, None where it is not on the device."""
    anatomies = [m.memory.anatomy_bytes for m in measurements]
    on_device = [a for a in anatomies if any(key.startswith("device/") for key in a)]
    return _largest(anatomy.get(f"device/{purpose}", 0) for anatomy in on_device)


def _largest(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def total(values: Iterable[int | None]) -> int | None:
    """Sum over rounds; None when one of them does not know, since the rest would understate it."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
