"""The contests of one setting and round: arranged, held, watched, and written into the records of their systems."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records.record import Check, Record, Verification
from suite.records.status import Status
from suite.records.turns import Conditions, Turns
from suite.run.conditions import Watch, disturbances
from suite.run.memory_probes import available_host_bytes
from suite.run.messages import Outcome
from suite.run.process import limits_of
from suite.run.scratch import free_bytes, is_disk_full
from suite.run.turns.arrangement import Contest, Needs, arrange
from suite.run.turns.contest import Result, hold
from suite.run.turns.times import times_of

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
        """Have them take turns. Returns the records with their times, or with the status of those that failed.

        Args:
            log: Gets the output of the processes.
        """
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
            result = Result(failed=dict.fromkeys((one.name for one in contest.entrants), _not_held(error)))
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


def _not_held(error: OSError) -> Outcome:
    status = Status.OOM_DISK if is_disk_full(error) else Status.CRASHED
    return Outcome(status=status, reason=f"could not take turns: {error}; make room under --out and TMPDIR")
