"""Timing of one setting and round: form groups, time them, monitor the machine, and add the times to records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records.measured import DriveTraffic, Turns
from suite.records.record import Check, Record, Status, Verification
from suite.run.agreement import same_arithmetic
from suite.run.conditions import MachineMonitor, disturbances
from suite.run.memory_probes import available_host_bytes
from suite.run.messages import CellResult
from suite.run.process import limits_of, not_started
from suite.run.scratch import free_bytes
from suite.run.turns.arrangement import BASELINE_REPEAT, Isolation, MemoryNeed, TimingGroup, arrange
from suite.run.turns.contest import Result, Series, hold

if TYPE_CHECKING:
    from suite.run.console.display import Display

_SHARE = 0.8
"""Share of the available memory that the systems of a timing group may use."""
_SHARE_BESIDE_DRIVE = 0.95
"""The same share where all systems but one have a memory limit."""


def take_turns(records: Sequence[Record], log: Path, *, display: Display, timeout_s: float | None) -> Iterator[Record]:
    """Time the systems of one setting and round, group by group; yields records with times, or the status of a failure.

    A group whose systems all have times of it is not timed again.

    Args:
        records: Records of the systems to time, all `ok`.
        log: File for the output of the first worker; other workers write to files beside it.
        display: Shows the progress.
        timeout_s: Seconds that one system may take; None: the scale's timeout.
    """
    by_system = {record.cell.system: record for record in records}
    display.turns_started(f"turns of {len(records)} systems x {records[0].cell.workload}")
    found: dict[str, Record] = {}
    for number, contest in enumerate(arrange(records, _room(records[0]))):
        if _was_held(contest):
            found |= {one.cell.system: one.record for one in contest.entrants if one.cell.system not in found}
            continue
        path = log if number == 0 else log.with_name(f"{log.stem}-contest{number + 1}{log.suffix}")
        cell = contest.entrants[0].cell
        watch = MachineMonitor(cuda=cell.device == "cuda")
        limits = limits_of(cell, timeout_s=timeout_s, cells=len(contest.entrants))
        try:
            result = hold(contest, limits=limits, log=path, on_progress=display.progress)
        except OSError as error:  # a full disk under the log, or no process
            result = Result(failed=dict.fromkeys((one.name for one in contest.entrants), not_started(error)))
        seen = watch.conditions(complete=not result.failed)
        around = {"conditions": seen, "disturbed": disturbances(seen, wall_s=watch.wall_s)}
        for system, times in times_of(contest, result, identity=uuid.uuid4().hex[:16]).items():
            if system not in found or isinstance(times, CellResult):  # the baseline may be in several groups
                before = found.get(system) or by_system[system].model_copy(update={"turns": None})
                found[system] = _with(times, before).model_copy(update=around)
                yield found[system]
    display.turns_finished()


def _was_held(contest: TimingGroup) -> bool:
    """Whether the group's systems have times of one group; the baseline's may be from another group with it."""
    base = None if contest.baseline is None else contest.baseline.record
    turns = {one.name: one.record.turns for one in contest.entrants}
    rivals = {one.record.turns.contest for one in contest.entrants if one.record is not base and one.record.turns}
    return None not in turns.values() and len(rivals) <= 1


def _with(times: Turns | CellResult, record: Record) -> Record:
    if isinstance(times, Turns):
        return record.model_copy(update={"turns": times})
    failed: dict[str, object] = {"status": times.status, "reason": times.reason, "phase": "turns"}
    if times.status is Status.WRONG_ANSWER and record.verification is not None:
        differs = Check(name="turns: losses", passed=False, max_difference=1.0, tolerance=0.0, detail=times.reason)
        failed["verification"] = Verification(checks=(*record.verification.checks, differs))
        failed["measurement"] = None
    return record.model_copy(update=failed)


def _room(record: Record) -> MemoryNeed:
    share = _SHARE if record.cell.host_budget_bytes is None else _SHARE_BESIDE_DRIVE
    on_device = record.environment.gpu_memory_bytes if record.cell.device == "cuda" else None
    return MemoryNeed(
        host=int(share * available_host_bytes()),
        device=int(_SHARE * (on_device or 0)),
        disk=int(_SHARE * free_bytes()[1]),
    )


def times_of(contest: TimingGroup, result: Result, *, identity: str) -> dict[str, Turns | CellResult]:
    """Times by system, or the failure of a system without times; `identity` is unique to the group."""
    found: dict[str, Turns | CellResult] = {}
    baseline = contest.baseline
    first, again = ("", "") if baseline is None else (baseline.name, baseline.name + BASELINE_REPEAT)
    for entrant in contest.entrants:
        name, beside = entrant.name, again if entrant is baseline else first
        if name == again:
            continue
        if name not in result.series:
            found[name] = result.failed[name]
            continue
        ours, theirs = result.series[name], result.series.get(beside)
        alone, alone_beside = result.embeddings.get(name, []), result.embeddings.get(beside, [])
        compared = theirs is not None and baseline is not None and same_arithmetic(entrant.record, baseline.record)
        if compared and (turn := _first_difference(ours, theirs or []) or _first_difference(alone, alone_beside)):
            found[name] = CellResult(
                status=Status.WRONG_ANSWER,
                reason=f"at the end of turn {turn} its loss differs from {first}'s on the same batches, though both "
                "were verified as bitwise equal",
            )
            continue
        way: Isolation = "own process" if name in result.own_process else contest.way
        found[name] = Turns(
            contest=identity,
            way=way,
            steps=contest.steps,
            system_s=_seconds(ours),
            baseline=None if theirs is None else first,
            baseline_s=None if theirs is None else _seconds(theirs),
            losses="equal" if compared else "not compared",
            data_wait_s=sum(turn.wait_s for build in ours for turn in build),
            drive=_traffic(ours, contest.steps),
            embedding_s=_seconds(alone) or None,
            baseline_embedding_s=_seconds(alone_beside) or None,
            embedding_drive=_traffic(alone, contest.steps),
        )
    return found


def _traffic(series: Series, steps: int) -> DriveTraffic | None:
    """Bytes from and to drives in all turns; None if there were none, as without rows on a drive."""
    turns = [turn for build in series for turn in build]
    if not any(turn.read_bytes or turn.written_bytes or turn.rows_read is not None for turn in turns):
        return None
    rows = [turn.rows_read for turn in turns]
    return DriveTraffic(
        steps=steps * len(turns),
        read_bytes=sum(turn.read_bytes for turn in turns),
        written_bytes=sum(turn.written_bytes for turn in turns),
        rows_read=None if None in rows else sum(count or 0 for count in rows),
    )


def _seconds(series: Series) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(turn.seconds for turn in build) for build in series)


def _first_difference(ours: Series, theirs: Series) -> int:
    """Number, from 1, of the first turn at whose end the losses differ; 0 if none."""
    pairs = zip(
        (turn.loss for build in ours for turn in build), (turn.loss for build in theirs for turn in build), strict=True
    )
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)
