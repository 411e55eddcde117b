"""Rounds merged into rows: one per system of a comparison group, in raw numbers and SI units."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.measured import Optimum, Traffic
from suite.records.record import Measurement, Record
from suite.records.status import Status
from suite.tables.statistics import Estimate, Speed, second_copies, speed_of, trusted_baseline
from suite.tables.targets import reached_near_the_end, samples_to
from systems.answers import Purpose

WAIT_SHARE = 0.02
"""Of a system's turns, above which waiting for batches is said beside the numbers."""

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
    """A system's rounds merged. None: does not exist, or is not known; never 0. The columns say what most fields mean.

    Attributes:
        auroc, accuracy: Mean over rounds, which differ in seed.
        target_auroc: What the baseline had reached near its end; the same in all rows of a group.
        target_s: Seconds of training to the target at this system's speed; None: not reached.
        ratio, ratio_low, ratio_high: Speed relative to the all-on-device baseline in the same turns, 95 % interval.
        computes_as: The system whose kernel this one is here, so that it was not timed.
        exact: It leaves the rows that plain training leaves; others are shown apart, and not ranked by speed.
        builds: That the ratio rests on, over all rounds.
        device_allocated_bytes, ...: Largest peak of any round. Traffic is counted in the first round alone.
        verified: `bitwise`, `within <tolerance>`, `no`; None where the cell failed before it was verified.
        measured_rounds: Of the rounds with a record, those that the numbers come from.
        again: This is the baseline's second copy, of which only the speed is told.
    """

    system: str
    knew: str | None = None
    auroc: float | None = None
    accuracy: float | None = None
    target_auroc: float | None = None
    target_s: float | None = None
    steps_per_s: float | None = None
    total_steps_per_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    computes_as: str | None = None
    exact: bool = True
    way: str | None = None
    builds: int = 0
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    host_net_bytes: int | None = None
    hit_rate: float | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookups: int | None = None
    lookup_misses: int | None = None
    fetched_bytes_per_step: float | None = None
    written_back_bytes_per_step: float | None = None
    wait_s_per_step: float | None = None
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
    again: bool = False

    @property
    def relative(self) -> Estimate | None:
        """The ratio with its interval."""
        return None if self.ratio is None else Estimate(value=self.ratio, low=self.ratio_low, high=self.ratio_high)

    @property
    def device_bytes(self) -> int | None:
        """On the device by the system's own account, as `--device-budget` counts them; None: it gives none."""
        parts = (self.device_rows_bytes, self.device_state_bytes, self.device_index_bytes, self.device_staging_bytes)
        known = [part for part in parts if part is not None]
        return sum(known) if known else None


def merged_rows(group: Group) -> list[Row]:
    """One row per system of a group: reference and baseline first, behind it its second copy, then by name."""
    systems = group.rounds_by_system
    baseline = trusted_baseline(systems.values())
    target = reached_near_the_end(trusted(baseline or systems.get(REFERENCE, ())))
    rows = []
    for runs in systems.values():
        rows.append(_merge(runs, baseline, target))
        if runs is baseline and (copies := second_copies(runs)):
            rows.append(_again(copies, baseline))
    return rows


def records_of(group: Group, row: Row) -> tuple[Record, ...]:
    """The records behind a row; behind the baseline's second copy are the baseline's."""
    copied = next((system for system in group.rounds_by_system if is_baseline(system)), "")
    return group.rounds_by_system[copied if row.again else row.system]


def noise_floor(rows: Iterable[Row]) -> float | None:
    """How far the baseline's second copy may seem from the first: a share, 0.02 being 2 %.

    Half the width of its interval, or its distance from 1 where that is more. None: there is no such row, or it has no
    interval.
    """
    for row in rows:
        if row.again and row.ratio is not None and row.ratio_low is not None and row.ratio_high is not None:
            return max((row.ratio_high - row.ratio_low) / 2, abs(row.ratio - 1))
    return None


def _merge(runs: Sequence[Record], baseline: Sequence[Record] | None, target: float | None) -> Row:
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
        "target_auroc": target,
    }
    if not measurements:
        return Row(**common)
    speed = _speed(runs, speed_of(runs, baseline))
    samples_per_s, samples = speed.get("samples_per_s"), samples_to(target, measurements)
    return Row(
        **common,
        **speed,
        knew=_words(m.knew for m in measurements),
        auroc=statistics.fmean(m.quality.auroc for m in measurements),
        accuracy=statistics.fmean(m.quality.accuracy for m in measurements),
        target_s=samples / samples_per_s if samples is not None and samples_per_s else None,
        computes_as=None if speed else _words(m.computes_as for m in measurements if m.computes_as is not None),
        exact=all(m.exact for m in measurements),
        device_allocated_bytes=_largest(m.memory.device_allocated_bytes for m in measurements),
        device_reserved_bytes=_largest(m.memory.device_reserved_bytes for m in measurements),
        host_peak_rss_bytes=_largest(m.memory.host_peak_rss_bytes for m in measurements),
        host_net_bytes=_largest(m.memory.host_peak_rss_bytes - m.memory.host_baseline_rss_bytes for m in measurements),
        **_traffic(measurements),
        **_device_bytes(measurements),
        misses_over_optimum=_over(runs, lambda traffic: traffic.unique_misses, lambda best: best.unique_misses),
        bytes_over_minimum=_over(runs, bytes_moved, lambda best: best.bytes_moved),
        placement=_words(m.placement for m in measurements),
        offloads=all(m.offloads for m in measurements),
    )


def _again(copies: Sequence[Record], baseline: Sequence[Record] | None) -> Row:
    return Row(
        system=copies[0].cell.system,
        rounds=len(copies),
        measured_rounds=len(copies),
        status=Status.OK,
        again=True,
        **_speed(copies, speed_of(copies, baseline)),
    )


def _speed(runs: Sequence[Record], speed: Speed | None) -> dict[str, Any]:
    """The fields that a speed fills; none where the system took no turns."""
    if speed is None:
        return {}
    samples_per_s = speed.steps_per_s * runs[0].cell.batch_size
    epoch = next((run.measurement.epoch_samples for run in runs if run.measurement is not None), None)
    itself = speed.ratio is None and is_baseline(runs[0].cell.system)
    return {
        "steps_per_s": speed.steps_per_s,
        "total_steps_per_s": speed.total_steps_per_s,
        "samples_per_s": samples_per_s,
        "epoch_s": None if epoch is None else epoch / samples_per_s,
        # Of the baseline to itself there is nothing to estimate.
        "ratio": 1.0 if itself else speed.ratio and speed.ratio.value,
        "ratio_low": speed.ratio and speed.ratio.low,
        "ratio_high": speed.ratio and speed.ratio.high,
        "way": _words(run.turns.way for run in runs if run.turns is not None),
        "builds": speed.builds,
    }


def trusted(runs: Sequence[Record]) -> tuple[Measurement, ...]:
    """Measurements of a system's rounds; none where one gave a wrong answer: no number of such a system is printed."""
    if any(run.status is Status.WRONG_ANSWER for run in runs):
        return ()
    return tuple(run.measurement for run in runs if run.measurement is not None)


def failure(ended: Row | Record) -> str:
    """How a system, or one round of it, ended that is not ok, and why."""
    where = f" in phase {ended.phase}" if ended.phase else ""
    return f"{ended.status.value}{where}: {one_line(ended.reason) or 'no reason was recorded'}"


def _traffic(measurements: Sequence[Measurement]) -> dict[str, Any]:
    counted = next((m.traffic for m in measurements if m.traffic is not None), None)
    if counted is None:
        return {}
    found = {
        name: getattr(counted, name) for name in ("hit_rate", "unique_ids", "unique_misses", "lookups", "lookup_misses")
    }
    sums = {"fetched_bytes": counted.bytes_fetched, "written_back_bytes": counted.bytes_written_back}
    for name, total in {**sums, "wait_s": counted.wait_s}.items():
        found[f"{name}_per_step"] = total / counted.steps if counted.steps and total is not None else None
    return found


def bytes_moved(traffic: Traffic) -> int | None:
    """Both ways; None where either is not known."""
    if traffic.bytes_fetched is None or traffic.bytes_written_back is None:
        return None
    return traffic.bytes_fetched + traffic.bytes_written_back


def _over(
    runs: Sequence[Record], counted: Callable[[Traffic], int | None], least: Callable[[Optimum], int]
) -> float | None:
    """What was counted per step, relative to the least possible."""
    for run in runs:
        traffic = None if run.measurement is None else run.measurement.traffic
        if traffic is None or run.optimum is None:
            continue
        found, best = counted(traffic), least(run.optimum)
        return found / traffic.steps * run.optimum.steps / best if found is not None and best else None
    return None


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
    checks = [check for verification in verifications for check in verification.checks]
    # the other optimizers' checks only pass or fail
    own = [check for check in checks if check.name.startswith(f"{runs[0].cell.optimizer}:")] or checks
    difference = max(check.max_difference for check in own)
    return "bitwise" if difference == 0 else f"within {difference:.0e}"


def _notes(runs: Sequence[Record], measurements: Sequence[Measurement]) -> tuple[str, ...]:
    notes = [one_line(note) for run in runs for note in run.notes]
    if 0 < len(measurements) < len(runs):
        notes.append(f"numbers come from {len(measurements)} of {len(runs)} rounds")
    overflow = sum(m.traffic.overflow_batches for m in measurements if m.traffic is not None)
    if overflow:
        notes.append(f"{overflow} counted batches had more distinct rows than the cache has slots")
    waits = [turns.data_wait_s / sum(map(sum, turns.system_s)) for run in runs if (turns := run.turns) is not None]
    if waits and max(waits) > WAIT_SHARE:
        notes.append(
            f"up to {100 * max(waits):.1f} % of its turns went by waiting for batches: the system is faster than the "
            "table says"
        )
    return tuple(dict.fromkeys(notes))


def one_line(text: str) -> str:
    """Text without line breaks, for tables and lists."""
    return " ".join(text.split())


def _words(words: Iterable[str]) -> str | None:
    """What rounds say, each once; None where none says anything."""
    return " / ".join(dict.fromkeys(words)) or None


def _device_bytes(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Device bytes by purpose: 0 where a system on the device needs none, None where it is not on the device."""
    anatomies = [m.memory.anatomy_bytes for m in measurements]
    on_device = [a for a in anatomies if any(key.startswith("device/") for key in a)]
    return {
        f"device_{purpose}_bytes": _largest(anatomy.get(f"device/{purpose}", 0) for anatomy in on_device)
        for purpose in Purpose
    }


def _largest(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
