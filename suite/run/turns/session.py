"""The contests of one setting and round: arranged, held, watched, and written into the records of their systems."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records.record import Check, Record, Verification
from suite.records.status import Status
from suite.records.turns import Conditions, DriveTraffic, Turns
from suite.run.agreement import same_arithmetic
from suite.run.conditions import Watch, disturbances
from suite.run.memory_probes import available_host_bytes
from suite.run.messages import Outcome
from suite.run.process import limits_of, not_started
from suite.run.scratch import free_bytes
from suite.run.turns.arrangement import AGAIN, Contest, Entrant, Needs, Way, arrange
from suite.run.turns.contest import Result, Series, hold

if TYPE_CHECKING:
    from suite.run.console.display import Display

_SHARE = 0.8
"""Of the memory that there is, what systems that take turns together may hold."""
_SHARE_BESIDE_DRIVE = 0.95
"""The same where all but one are held to a budget."""


class Session:
    """Gives records their times.

    Args:
        records: Of the systems of one setting and round that take turns, all `ok`.
        display: Told whose turn it is, and how the ratios stand.
        timeout_s: Seconds that one system may take; None: as the scale says.
    """

    def __init__(self, records: Sequence[Record], *, display: Display, timeout_s: float | None) -> None:
        self._records = {record.cell.system: record for record in records}
        self._display = display
        self._timeout_s = timeout_s

    def run(self, log: Path) -> list[Record]:
        """Have them take turns. Returns the records with their times, or with the status of those that failed."""
        cell = next(iter(self._records.values())).cell
        contests = arrange(list(self._records.values()), _room(next(iter(self._records.values()))))
        self._display.turns_started(f"turns of {len(self._records)} systems x {cell.workload}")
        found: list[Record] = []
        for number, contest in enumerate(contests):
            path = log if number == 0 else log.with_name(f"{log.stem}-contest{number + 1}{log.suffix}")
            found += self._hold(contest, path)
        self._display.turns_finished()
        return found

    def _hold(self, contest: Contest, log: Path) -> list[Record]:
        cell = contest.entrants[0].cell
        watch = Watch(cuda=cell.device == "cuda")
        limits = limits_of(cell, timeout_s=self._timeout_s, cells=len(contest.entrants))
        try:
            result = hold(contest, limits=limits, log=log, show=self._display.turn)
        except OSError as error:  # a full disk under the log, no process to be had
            result = Result(failed=dict.fromkeys((one.name for one in contest.entrants), not_started(error)))
        seen = watch.conditions(complete=not result.failed)
        times = times_of(contest, result, identity=uuid.uuid4().hex[:16])
        return [self._with(times[system], self._records[system], seen, watch.wall_s) for system in times]

    def _with(self, times: Turns | Outcome, record: Record, seen: Conditions, wall_s: float) -> Record:
        around = {"conditions": seen, "disturbed": disturbances(seen, wall_s=wall_s)}
        if isinstance(times, Turns):
            return record.model_copy(update={"turns": times, **around})
        failed = {"status": times.status, "reason": times.reason, "phase": "turns", **around}
        if times.status is Status.WRONG_ANSWER and record.verification is not None:
            differs = Check(name="turns: losses", passed=False, max_difference=1.0, tolerance=0.0, detail=times.reason)
            failed["verification"] = Verification(checks=(*record.verification.checks, differs))
            failed["measurement"] = None
        return record.model_copy(update=failed)


def _room(record: Record) -> Needs:
    share = _SHARE if record.cell.host_budget_bytes is None else _SHARE_BESIDE_DRIVE
    on_device = record.environment.gpu_memory_bytes if record.cell.device == "cuda" else None
    return Needs(
        host=int(share * available_host_bytes()),
        device=int(_SHARE * (on_device or 0)),
        disk=int(_SHARE * free_bytes()[1]),
    )


def times_of(contest: Contest, result: Result, *, identity: str) -> dict[str, Turns | Outcome]:
    """By system: its times, or why it has none; `identity` is equal to no other contest's."""
    found: dict[str, Turns | Outcome] = {}
    baseline = contest.baseline
    theirs = result.series.get(baseline.name) if baseline is not None else None
    again = result.series.get(baseline.name + AGAIN) if baseline is not None else None
    for entrant in contest.entrants:
        if entrant.name.endswith(AGAIN):
            continue
        beside_itself = again is not None or len(contest.entrants) == 1 or contest.times_baseline
        if entrant is baseline and theirs is not None and not beside_itself:
            continue  # its own times are those beside its second self
        if entrant.name not in result.series:
            found[entrant.name] = result.failed[entrant.name]
            continue
        own, beside = result.series[entrant.name], again if entrant is baseline else theirs
        compared = beside is not None and baseline is not None and same_arithmetic(entrant.record, baseline.record)
        alone = _embeddings(contest, result, entrant)
        if compared and (turn := _first_difference(own, beside or []) or _first_difference(*alone)):
            found[entrant.name] = Outcome(
                status=Status.WRONG_ANSWER,
                reason=f"at the end of turn {turn} its loss differs from {contest.entrants[0].name}'s on the same "
                "batches, though both were verified as bitwise equal",
            )
            continue
        way: Way = "own process" if entrant.name in result.own_process else contest.way
        found[entrant.name] = Turns(
            contest=identity,
            way=way,
            steps=contest.steps,
            system_s=_seconds(own),
            baseline=None if beside is None or baseline is None else baseline.name,
            baseline_s=None if beside is None else _seconds(beside),
            losses="equal" if compared else "not compared",
            data_wait_s=sum(turn.wait_s for build in own for turn in build),
            drive=_traffic(own, contest.steps),
            embedding_s=_seconds(alone[0]) or None,
            baseline_embedding_s=_seconds(alone[1]) or None,
            embedding_drive=_traffic(alone[0], contest.steps),
        )
    return found


def _embeddings(contest: Contest, result: Result, entrant: Entrant) -> tuple[Series, Series]:
    """Turns without the MLPs, and the baseline's beside them; empty where there were none."""
    baseline = contest.baseline
    beside = "" if baseline is None else baseline.name + AGAIN if entrant is baseline else baseline.name
    return result.embeddings.get(entrant.name, []), result.embeddings.get(beside, [])


def _traffic(series: Series, steps: int) -> DriveTraffic | None:
    """From and to drives in all turns; None where nothing was, as no rows are there."""
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
    """The first turn, from 1, at whose end the losses differ; 0: there is none."""
    pairs = zip(
        (turn.loss for build in ours for turn in build), (turn.loss for build in theirs for turn in build), strict=True
    )
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)
