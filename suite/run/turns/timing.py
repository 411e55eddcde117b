"""Timing of one setting and round: systems train the same batches in turns, which gives their speed.

`take_turns` forms groups of systems, times each group with `time_group`, and puts the times into records. The workers
that hold the systems are `suite.run.turns.host`.
"""

from __future__ import annotations

import math
import statistics
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records.measured import DriveTraffic, Isolation, Turns
from suite.records.record import Check, Record, Status
from suite.records.scales import AGREE, LEAD_STEPS
from suite.run.agreement import same_arithmetic
from suite.run.conditions import MachineMonitor, interference
from suite.run.locks import free_bytes
from suite.run.process import Limits, OnProgress, WorkerProcess, limits_of, not_started
from suite.run.resources import available_host_bytes
from suite.run.turns.groups import (
    BASELINE_REPEAT,
    MemoryNeed,
    Participant,
    TimingGroup,
    arrange,
    balanced_orders,
)
from suite.run.worker import Build, CellResult, Progress, RunSteps, StepTiming
from suite.tables.statistics import slowed_alone

if TYPE_CHECKING:
    from suite.run.console.display import Display

_SHARE = 0.8
"""Share of the available memory that the systems of a timing group may use."""
_SHARE_BESIDE_DRIVE = 0.95
"""The same share where all systems but one have a memory limit."""

_WHOLE, _EMBEDDINGS, _ALONE = range(3)
"""Kinds of turns: whole steps, embedding steps, whole steps with nobody between."""

Series = list[list[StepTiming]]
"""Turns by build."""


@dataclass
class GroupTimes:
    """Result of a timing group.

    Attributes:
        builds: Of every build whose turns were all taken: turns by participant name, of those that finished; of the
            whole step, of the embedding step alone, and runs of the whole step with nobody between.
        own_process: Names of participants that finished in a process of their own.
        failed: Failures by name, of the other participants.
        interrupted: Ctrl-C came before the last build.
    """

    builds: list[dict[str, tuple[list[StepTiming], ...]]] = field(default_factory=list)
    own_process: set[str] = field(default_factory=set)
    failed: dict[str, CellResult] = field(default_factory=dict)
    interrupted: bool = False

    def series(self, name: str) -> tuple[Series, ...]:
        """Turns of a participant in the order of `builds`; empty if it did not finish."""
        builds = [build[name] for build in self.builds if name in build]
        return tuple([build[kind] for build in builds if build[kind]] for kind in range(3))


def take_turns(records: Sequence[Record], log: Path, *, display: Display, timeout_s: float | None) -> Iterator[Record]:
    """Time the systems of one setting and round, group by group; yields records with times, or the status of a failure.

    A group whose systems all have all times of it is not timed again. After Ctrl-C records come with the times of the
    builds that were finished, and then `KeyboardInterrupt`.

    Args:
        records: Records of the systems to time, all `ok`.
        log: File for the output of the first worker; other workers write to files beside it.
        display: Shows the progress.
        timeout_s: Seconds that one system may take; None: the scale's timeout.
    """
    by_system = {record.cell.system: record for record in records}
    display.started(f"turns of {len(records)} systems x {records[0].cell.workload}")
    found: dict[str, Record] = {}
    for number, group in enumerate(arrange(records, _room(records[0]))):
        if _is_timed(group):
            found |= {one.cell.system: one.record for one in group.participants if one.cell.system not in found}
            continue
        path = log if number == 0 else log.with_name(f"{log.stem}-contest{number + 1}{log.suffix}")
        cell = group.participants[0].cell
        monitor = MachineMonitor(cuda=cell.device == "cuda")
        limits = limits_of(cell, timeout_s=timeout_s, cells=len(group.participants))
        try:
            result = time_group(group, limits=limits, log=path, on_progress=display.progress)
        except OSError as error:  # a full disk under the log, or no process
            result = GroupTimes(failed=dict.fromkeys((one.name for one in group.participants), not_started(error)))
        seen = monitor.conditions()
        around = {"conditions": seen, "disturbed": interference(seen, wall_s=monitor.wall_s)}
        for system, times in times_of(group, result, identity=uuid.uuid4().hex[:16]).items():
            if system not in found or isinstance(times, CellResult):  # the baseline may be in several groups
                before = found.get(system) or by_system[system].model_copy(update={"turns": None})
                found[system] = _with(times, before).model_copy(update=around)
                yield found[system]
        if result.interrupted:
            raise KeyboardInterrupt
    display.turns_finished()


def time_group(
    group: TimingGroup, *, limits: Limits, log: Path, on_progress: OnProgress = lambda _: None
) -> GroupTimes:
    """Time the systems of a group; progress counts the turns of all systems, with the participant's name as the phase.

    If one of them ends the process that it shares, all start again, that one in a process of its own. If it ends that
    one too, the others start again without it. If the baseline is slower or faster in turns than alone, by more than
    `AGREE`, and shares its process, all start again, each in a process of its own.

    `log` gets the output of the shared worker; workers of systems in a process of their own write to files beside it.
    """
    failed: dict[str, CellResult] = {}
    while group.participants:
        times = GroupTimes(own_process={one.name for one in group.participants if one.own_process}, failed=failed)
        try:
            _Attempt(group, limits, on_progress).run(log, times)
        except KeyboardInterrupt:
            if not times.builds:
                raise
            times.interrupted = True
            return times
        except _Failure as failure:
            gone = failure.participant
            if gone.own_process or len(group.participants) == 1:
                names = [gone.name] if gone is not group.baseline else [gone.name, gone.name + BASELINE_REPEAT]
                failed |= dict.fromkeys(names, failure.result)
                left = [one for one in group.participants if one.name not in names]
            else:
                left = [replace(one, own_process=True) if one is gone else one for one in group.participants]
        else:
            if not _shifted(group, times):
                return times
            left = [replace(one, own_process=True) for one in group.participants]
        group = replace(group, participants=tuple(left))
        log = log.with_name(f"{log.stem}-again{log.suffix}")
    return GroupTimes(failed=failed)


def _shifted(group: TimingGroup, times: GroupTimes) -> bool:
    """Whether the baseline shares a process and its pace in turns is off its pace alone by more than `AGREE`."""
    shared = [one for one in group.participants if not one.own_process]
    if group.baseline not in shared or len(shared) == 1:
        return False
    turned, _, alone = map(_seconds, times.series(group.baseline.name))
    return bool(alone) and abs(statistics.median(slowed_alone(turned, alone, group.alone_behind))) > math.log1p(AGREE)


class _Failure(Exception):
    """A system made its worker exit or fail."""

    def __init__(self, participant: Participant, result: CellResult) -> None:
        super().__init__(result.reason)
        self.participant = participant
        self.result = result


@dataclass
class _Attempt:
    """One attempt to time all participants of a group."""

    group: TimingGroup
    limits: Limits
    on_progress: OnProgress
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    done: int = 0

    def run(self, log: Path, times: GroupTimes) -> None:
        """Build, warm up and time all systems, as many times as the cells' `builds`; on a drive they are built once.

        `times` gets the turns of each build once all are taken.

        Raises:
            _Failure: a system made its worker exit or fail.
        """
        group, cell = self.group, self.group.participants[0].cell
        orders = balanced_orders(len(group.participants))
        shared = [one for one in group.participants if not one.own_process]
        processes = ([shared] if shared else []) + [[one] for one in group.participants if one.own_process]
        with ExitStack() as stack:
            for number, members in enumerate(processes):
                path = log.with_name(f"{log.stem}-{number}{log.suffix}") if number else log
                worker = stack.enter_context(WorkerProcess(path))
                self.workers |= {one.name: worker for one in members}
            for build in range(cell.builds):
                if not build or not group.on_drive:
                    for one in group.participants:
                        self._ask(
                            one, f"build {one.name}", Build(name=one.name, cell=one.cell, steps=group.stream_steps)
                        )
                    # caches fill without the MLPs too, in a fraction of the time
                    for one in group.participants:
                        warmup = RunSteps(name=one.name, steps=cell.warmup_steps, embeddings_only=True)
                        self._ask(one, f"warm up {one.name}", warmup)
                # a part of a design goes on where the build before ended; whole ones begin with another order each
                first = build * (group.turns % len(orders) or 1)
                turns = [orders[turn % len(orders)] for turn in range(first, first + group.turns)]
                plan: list[tuple[int, int]] = []
                for number, order in enumerate(turns):
                    kinds = [_WHOLE, *[_ALONE] * group.alone_behind.count(number)]
                    plan += [(place, kind) for place in order for kind in kinds]
                plan += [(place, _EMBEDDINGS) for order in turns for place in order]
                times.builds.append(self._take(plan))

    def _take(self, plan: Iterable[tuple[int, int]]) -> dict[str, tuple[list[StepTiming], ...]]:
        """Let participants train turn by turn: whose it is, as a place in the group, and its kind."""
        participants, steps = self.group.participants, self.group.steps
        found: dict[str, tuple[list[StepTiming], ...]] = {one.name: ([], [], []) for one in participants}
        for one, kind in ((participants[place], kind) for place, kind in plan):
            turn = RunSteps(name=one.name, steps=steps, lead_steps=LEAD_STEPS, embeddings_only=kind == _EMBEDDINGS)
            taken = self._ask(one, one.name, turn)
            assert taken is not None
            found[one.name][kind].append(taken)
            self.done += 1
        return found

    def _ask(self, one: Participant, phase: str, request: Build | RunSteps) -> StepTiming | None:
        """Report progress and send a request. Returns the timing of `RunSteps`, None for a build.

        Raises:
            _Failure: the worker failed.
        """
        turns = one.cell.builds * (2 * self.group.turns + self.group.alone_runs) * len(self.group.participants)
        self.on_progress(Progress(phase=phase, step=self.done, steps=turns))
        self.workers[one.name].ask(request)
        answer = self.workers[one.name].answer(self.limits)
        if isinstance(answer, CellResult):
            raise _Failure(one, answer)
        return answer


def times_of(group: TimingGroup, result: GroupTimes, *, identity: str) -> dict[str, Turns | CellResult]:
    """Times by system, or the failure of a system without times; `identity` is unique to the group."""
    found: dict[str, Turns | CellResult] = {}
    baseline = group.baseline
    first, again = ("", "") if baseline is None else (baseline.name, baseline.name + BASELINE_REPEAT)
    for one in group.participants:
        name, beside = one.name, again if one is baseline else first
        if name == again:
            continue
        if name in result.failed:
            found[name] = result.failed[name]
            continue
        ours, theirs = result.series(name), result.series(beside)
        compared = bool(theirs[0]) and baseline is not None and same_arithmetic(one.record, baseline.record)
        if compared and (turn := next(filter(None, map(_first_difference, ours, theirs)), 0)):
            found[name] = CellResult(
                status=Status.WRONG_ANSWER,
                reason=f"at the end of turn {turn} its loss differs from {first}'s on the same batches, though both "
                "were verified as bitwise equal",
            )
            continue
        way: Isolation = "own process" if name in result.own_process else group.isolation
        found[name] = Turns(
            contest=identity,
            way=way,
            steps=group.steps,
            system_s=_seconds(ours[0]),
            baseline=first if theirs[0] else None,
            baseline_s=_seconds(theirs[0]) or None,
            losses="equal" if compared else "not compared",
            data_wait_s=sum(turn.wait_s for build in ours[0] for turn in build),
            drive=_traffic(ours[0], LEAD_STEPS + group.steps),
            embedding_s=_seconds(ours[1]) or None,
            baseline_embedding_s=_seconds(theirs[1]) or None,
            alone_s=_seconds(ours[2]) or None,
            baseline_alone_s=_seconds(theirs[2]) or None,
            alone_behind=group.alone_behind if ours[2] else None,
            embedding_drive=_traffic(ours[1], LEAD_STEPS + group.steps),
        )
    return found


def _room(record: Record) -> MemoryNeed:
    """Memory that the systems of a group may use together."""
    share = _SHARE if record.cell.host_budget_bytes is None else _SHARE_BESIDE_DRIVE
    on_device = record.environment.gpu_memory_bytes if record.cell.device == "cuda" else None
    return MemoryNeed(
        host=int(share * available_host_bytes()),
        device=int(_SHARE * (on_device or 0)),
        disk=int(_SHARE * free_bytes()[1]),
    )


def _is_timed(group: TimingGroup) -> bool:
    """Whether the group's systems have times of one group; the baseline's may be from another group with it."""
    base = None if group.baseline is None else group.baseline.record
    groups = {one.record.turns.contest for one in group.participants if one.record is not base and one.record.turns}
    return not any(one.record.lacks_turns for one in group.participants) and len(groups) <= 1


def _with(times: Turns | CellResult, record: Record) -> Record:
    """The record with its times, or the status of the failure."""
    if isinstance(times, Turns):
        return record.model_copy(update={"turns": times})
    if times.status is Status.WRONG_ANSWER and record.verification is not None:
        differs = Check.of("turns: losses", 1.0, 0.0, detail=times.reason)
        return record.checked((*record.verification.checks, differs), phase="turns", reason=times.reason)
    return record.model_copy(update={"status": times.status, "reason": times.reason, "phase": "turns"})


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
    losses = ([turn.loss for build in series for turn in build] for series in (ours, theirs))
    pairs = zip(*losses, strict=True)
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)
