"""Rounds merged into rows: one per system of a comparison group, in raw numbers and SI units."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from suite.records.groups import REFERENCE, RecordGroup, base_name, device_title
from suite.records.record import Cell, Measurement, Record, Status
from suite.records.scales import AGREE
from suite.tables.sheet import SETTING
from suite.tables.statistics import Estimate, kernel_ratio, repeat_speed, speed_of, trusted_baseline, turned_and_alone
from systems.answers import MemoryUse, Tier

WAIT_SHARE = 0.02
"""Share of a system's turns above which waiting for batches is noted beside the numbers."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system's rounds merged. None: does not exist, or is not known.

    Attributes:
        apart: Pace in turns and pace alone, where they differ by more than `AGREE` and noise; else empty.
        ratio: Speed relative to the all-on-device baseline in the same turns, with its 95 % interval.
        same_kernel_as: The system whose kernel this one is here, so that it was not timed.
        exact: It leaves the rows that plain training leaves; others are shown apart, and not ranked by speed.
        verified: `bitwise`, `within <tolerance>`, `no`; None where the cell failed before it was verified.
        measured_rounds: Number of rounds that the numbers come from, of those with a record.
        noise: Apparent distance of the repeat from the baseline, a share; the same in a group's rows.
        numbers: What only tables show, by column: peaks are the largest of any round, traffic is that of the first.
        records: Records of its rounds; behind the repeat are the baseline's.
    """

    system: str
    auroc: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    ratio: Estimate | None = None
    alone_steps_per_s: float | None = None
    apart: str = ""
    builds: int = 0
    same_kernel_as: str | None = None
    exact: bool = True
    offloads: bool | None = None
    verified: str | None = None
    measured_rounds: int
    status: Status
    reason: str = ""
    phase: str = ""
    notes: tuple[str, ...] = ()
    noise: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = field(default=(), repr=False)

    @property
    def cell(self) -> Cell:
        """The configuration, of its rounds the first."""
        return self.records[0].cell

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Those that the numbers come from."""
        return trusted(self.records)

    def quality(self, name: str) -> dict[int, float]:
        """AUROC or accuracy by round; rounds differ in seed."""
        measured = self.records if self.measured_rounds else ()
        return {run.cell.round: getattr(run.measurement.quality, name) for run in measured if run.measurement}

    @property
    def passed(self) -> bool:
        """Whether every verification passed, and there was one."""
        return self.verified not in (None, "no")

    @property
    def sound(self) -> bool:
        """Whether every round ended ok, and it is verified and exact."""
        return self.status is Status.OK and self.passed and self.exact

    @property
    def interrupted(self) -> bool:
        """Whether turns of a round were interrupted before all builds were timed."""
        return any(one.turns is not None and one.lacks_turns for one in self.records)

    @property
    def device_bytes(self) -> int | None:
        """On the device by the system's own account, as `--device-budget` counts them; None: it gives none."""
        parts = [self.numbers.get(f"device_{use}_bytes") for use in MemoryUse]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    def line(self) -> dict[str, Any]:
        """Raw numbers by column: the setting, the fields, the numbers, and the keys of the records."""
        cell, environment = self.cell, self.records[0].environment
        own = {name: value for name, value in vars(self).items() if name not in ("notes", "numbers", "records")}
        return {
            **{name: getattr(cell, name) for name in SETTING if hasattr(cell, name)},
            "kind": "virtual device" if self.records[0].on_virtual_device else "measured",
            "device": device_title(cell, environment),
            "host": environment.cpu,
            "threads": environment.threads,
            **own,
            **self.numbers,
            "status": self.status.value,
            "reason": one_line(self.reason),
            "records": " ".join(run.key for run in self.records),
        }


def merged_rows(group: RecordGroup) -> list[Row]:
    """One row per system: reference, baseline, others by name."""
    systems = group.rounds_by_system
    baseline = trusted_baseline(systems.values())
    repeat = baseline_repeat(group)
    noise = None if repeat is None else repeat.noise
    rows = []
    for runs in systems.values():
        row = _merge(runs, baseline)
        numbers = {**row.numbers, "kernel_ratio": kernel_ratio(runs, row.ratio, systems)}
        row = replace(row, noise=noise, numbers=numbers, apart=_apart(row))
        rows.append(replace(row, notes=tuple(dict.fromkeys(_notes(row)))))
    return rows


def _apart(row: Row) -> str:
    """Paces of the system, or of the baseline beside it, that differ by more than `AGREE` beside the ratio's noise."""
    low, high = (None, None) if row.ratio is None else (row.ratio.low, row.ratio.high)
    allowed = math.log1p(AGREE + (math.log(high / low) / 2 if low and high else 0.0))
    for name, turned, alone in turned_and_alone(row.records):
        if abs(math.log(turned / alone)) > allowed:
            return f"{name}: {turned:.3g} it/s in turns, {alone:.3g} alone"
    return ""


def baseline_repeat(group: RecordGroup) -> Row | None:
    """The row of the baseline's repeat in the same turns, which shows the noise; None where it took none."""
    baseline = trusted_baseline(group.rounds_by_system.values())
    speed = repeat_speed(baseline or ())
    if not baseline or not speed:
        return None
    return _row(
        system=f"{baseline[0].cell.system} (again)",
        measured_rounds=len(baseline),
        rounds=len(baseline),
        status=Status.OK,
        noise=speed["ratio"].noise,
        records=tuple(baseline),
        **speed,
    )


def _row(**values: Any) -> Row:  # noqa: ANN401 - of all kinds
    """A row; what is no field of it is among its numbers."""
    own = {one.name for one in fields(Row)}
    numbers = {name: value for name, value in values.items() if name not in own}
    return Row(**{name: value for name, value in values.items() if name in own}, numbers=numbers)


def _merge(runs: tuple[Record, ...], baseline: Sequence[Record] | None) -> Row:
    worst = max(runs, key=lambda record: [*Status].index(record.status))
    measurements = trusted(runs)
    common: dict[str, Any] = {
        "system": runs[0].cell.system,
        "rounds": len(runs),
        "measured_rounds": len(measurements),
        "status": worst.status,
        "reason": worst.reason,
        "phase": worst.phase,
        "verified": _verified(runs),
        "records": runs,
    }
    if not measurements:
        return _row(**common)
    speed = speed_of(runs, baseline)
    kernels = [m.same_kernel_as for m in measurements if m.same_kernel_as is not None]
    return _row(
        **common,
        **speed,
        prior_knowledge=_words(m.prior_knowledge for m in measurements),
        **_mean_quality("auroc", measurements),
        **_mean_quality("accuracy", measurements),
        same_kernel_as=None if speed else _words(kernels),
        exact=all(m.exact for m in measurements),
        device_allocated_bytes=_largest(m.memory.device_allocated_bytes for m in measurements),
        device_reserved_bytes=_largest(m.memory.device_reserved_bytes for m in measurements),
        host_peak_rss_bytes=_largest(m.memory.host_peak_rss_bytes for m in measurements),
        **_traffic(measurements),
        **_own_account(measurements),
        **_over_optimum(runs),
        placement=_words(m.placement for m in measurements),
        offloads=all(m.offloads for m in measurements),
    )


def _mean_quality(name: str, measurements: Sequence[Measurement]) -> dict[str, float | None]:
    """Mean of AUROC or accuracy over rounds, and its standard error as a share of it; None where there is one round."""
    found = [getattr(measurement.quality, name) for measurement in measurements]
    mean = statistics.fmean(found)
    spread = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return {name: mean, f"{name}_noise": spread / mean if spread else None}


def trusted(runs: Sequence[Record]) -> tuple[Measurement, ...]:
    """Measurements of a system's rounds; none where one gave a wrong answer: no number of such a system is printed."""
    if any(run.status is Status.WRONG_ANSWER for run in runs):
        return ()
    return tuple(run.measurement for run in runs if run.measurement is not None)


def failure(ended: Row | Record) -> str:
    """Status, phase and reason of a system, or one round of it, that did not end ok."""
    where = f" in phase {ended.phase}" if ended.phase else ""
    return f"{ended.status.value}{where}: {one_line(ended.reason) or 'no reason was recorded'}"


def remarks(rows: Iterable[Row]) -> list[str]:
    """Notes below a table: how each system ended that is not ok, and what else a reader has to know of the rows."""
    rows = list(rows)
    failed = [f"{row.system}: {failure(row)}" for row in rows if row.status is not Status.OK]
    return [*failed, *(f"{row.system}: {note}" for row in rows for note in row.notes)]


def _traffic(measurements: Sequence[Measurement]) -> dict[str, Any]:
    counted = next((m.traffic for m in measurements if m.traffic is not None), None)
    if counted is None:
        return {}
    names = ("hit_rate", "unique_ids", "unique_misses", "lookups", "lookup_misses")
    sums = {"fetched_bytes": counted.bytes_fetched, "written_back_bytes": counted.bytes_written_back}
    hits = None if not counted.lookups or counted.lookup_misses is None else 1 - counted.lookup_misses / counted.lookups
    return {
        **{name: getattr(counted, name) for name in names},
        **{f"{name}_per_step": None if total is None else total / counted.steps for name, total in sums.items()},
        "lookup_hit_rate": hits,
    }


def _over_optimum(runs: Sequence[Record]) -> dict[str, Any]:
    """Misses and bytes per step of the round that was counted, relative to the least possible."""
    for run in runs:
        if run.measurement is None or run.optimum is None or (traffic := run.measurement.traffic) is None:
            continue
        pairs = {
            "misses_over_optimum": (traffic.unique_misses, run.optimum.unique_misses),
            "bytes_over_minimum": (traffic.bytes_moved, run.optimum.bytes_moved),
        }
        return {
            name: None if counted is None or not least else counted / traffic.steps * run.optimum.steps / least
            for name, (counted, least) in pairs.items()
        }
    return {}


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


def _notes(row: Row) -> Iterator[str]:
    runs, measurements = row.records, row.measurements
    yield from (one_line(note) for run in runs for note in run.notes)
    if 0 < len(measurements) < len(runs):
        yield f"numbers come from {len(measurements)} of {len(runs)} rounds"
    overflow = sum(m.traffic.overflow_batches for m in measurements if m.traffic is not None)
    if overflow:
        yield f"{overflow} counted batches had more distinct rows than the cache has slots"
    waits = [turns.data_wait_s / sum(map(sum, turns.system_s)) for run in runs if (turns := run.turns) is not None]
    if waits and max(waits) > WAIT_SHARE:
        share = f"{100 * max(waits):.1f} %"
        yield f"up to {share} of its turns went by waiting for batches: the system is faster than the table says"
    if row.interrupted:
        yield f"its turns were interrupted before all {row.cell.builds} builds were timed: give the same command again"
    if row.apart:
        yield f"{row.apart}: they differ, and no verdict uses the ratio"


def one_line(text: str) -> str:
    """Text without line breaks, for tables and lists."""
    return " ".join(text.split())


def _words(words: Iterable[str]) -> str | None:
    """The words of all rounds, each once; None where there are none."""
    return " / ".join(dict.fromkeys(words)) or None


def _own_account(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Bytes by tier, those on the device by purpose: 0 of one that is not needed there, None of a tier without any."""
    anatomies = [m.memory.anatomy_bytes for m in measurements]
    on_device = [a for a in anatomies if any(key.startswith("device/") for key in a)]
    below = {
        tier: [sum(size for key, size in a.items() if key.startswith(f"{tier}/")) or None for a in anatomies]
        for tier in (Tier.HOST, Tier.DISK)
    }
    return {
        **{f"device_{use}_bytes": _largest(a.get(f"device/{use}", 0) for a in on_device) for use in MemoryUse},
        **{f"{tier}_tier_bytes": _largest(sizes) for tier, sizes in below.items()},
    }


def _largest(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
