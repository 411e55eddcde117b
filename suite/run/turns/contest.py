"""A contest, seen from the parent: hosts are started, systems built, turns given in balanced orders, times kept."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from suite.run.messages import Build, CellResult, Clear, Host, Progress, RunSteps, StepTiming
from suite.run.process import Limits, OnProgress, Worker
from suite.run.turns.arrangement import AGAIN, Participant, TimingGroup, balanced_orders

_TELL_EVERY_S = 0.5

Series = list[list[StepTiming]]
"""Turns by build."""


@dataclass
class Result:
    """What came of a contest.

    Attributes:
        series: By name, of those who took all their turns.
        embeddings: The same of turns without the MLPs, where there were such.
        own_process: Names of those who ended in a process of their own.
        failed: By name, why others did not come to the end.
    """

    series: dict[str, Series] = field(default_factory=dict)
    embeddings: dict[str, Series] = field(default_factory=dict)
    own_process: set[str] = field(default_factory=set)
    failed: dict[str, CellResult] = field(default_factory=dict)


class _Fell(Exception):
    """A system ended its host."""

    def __init__(self, entrant: Participant, outcome: CellResult) -> None:
        super().__init__(outcome.reason)
        self.entrant = entrant
        self.outcome = outcome


def hold(contest: TimingGroup, *, limits: Limits, log: Path, on_progress: OnProgress = lambda _: None) -> Result:
    """Have the systems of a contest take turns; progress is in turns of all systems, whose it is in the phase's place.

    Where one of them ends the process that it shares, all begin again, that one in a process of its own. Where it ends
    that one too, the others begin again without it. The log gets the output of the hosts; those of systems in a process
    of their own write beside it.
    """
    result = Result()
    for number in itertools.count(1):
        if not contest.entrants:
            break
        try:
            attempt = _Attempt(contest, limits, on_progress)
            attempt.run(log if number == 1 else log.with_name(f"{log.stem}-attempt{number}{log.suffix}"))
            result.series, result.embeddings = attempt.series, attempt.embeddings
        except _Fell as fell:
            gone = fell.entrant
            if gone.own_process or len(contest.entrants) == 1:
                names = [gone.name] if gone is not contest.baseline else [gone.name, gone.name + AGAIN]
                result.failed |= dict.fromkeys(names, fell.outcome)
                left = [one for one in contest.entrants if one.name not in names]
            else:
                left = [replace(one, own_process=True) if one is gone else one for one in contest.entrants]
            contest = replace(contest, entrants=tuple(left))
        else:
            break
    result.own_process = {entrant.name for entrant in contest.entrants if entrant.own_process}
    return result


class _Attempt:
    """One try to bring all entrants to the end; its series are those of a `Result`."""

    def __init__(self, contest: TimingGroup, limits: Limits, on_progress: OnProgress) -> None:
        self._contest = contest
        self._limits = limits
        self._on_progress = on_progress
        self._cell = contest.entrants[0].cell
        self._orders = balanced_orders(len(contest.entrants))
        self.series: dict[str, Series] = {entrant.name: [] for entrant in contest.entrants}
        self.embeddings: dict[str, Series] = {name: [] for name in (self.series if contest.on_drive else ())}
        self._workers: dict[str, Worker] = {}
        self._done = 0
        self._told = -math.inf

    def run(self, log: Path) -> None:
        """Build and take turns, as often as the cells say.

        Raises:
            _Fell: a system ended its host.
        """
        with ExitStack() as stack:
            shared = [entrant for entrant in self._contest.entrants if not entrant.own_process]
            groups = ([shared] if shared else []) + [[one] for one in self._contest.entrants if one.own_process]
            for number, group in enumerate(groups):
                path = log.with_name(f"{log.stem}-{number}{log.suffix}") if number else log
                mine = stack.enter_context(Worker(path))
                self._workers |= {entrant.name: mine for entrant in group}
                self._ask(group[0], Host(cells={one.name: one.cell for one in group}, steps=self._steps))
            hosts = [group[0] for group in groups]
            for build in range(self._cell.builds):
                if not build or not self._contest.on_drive:
                    self._build(hosts if build else [])
                self._take_turns(build)
        self._told = -math.inf
        self._tell("done")

    @property
    def _steps(self) -> int:
        """Of a system after a build."""
        steps = self._contest.turns * self._contest.steps
        # systems on a drive are built once, and take as many turns without the MLPs
        return self._cell.warmup_steps + steps * (2 * self._cell.builds if self._contest.on_drive else 1)

    def _build(self, hosts: list[Participant]) -> None:
        """Build all systems anew."""
        for host in hosts:
            self._ask(host, Clear())
        for entrant in self._contest.entrants:
            self._tell(f"build {entrant.name}")
            self._ask(entrant, Build(name=entrant.name))
        for entrant in self._contest.entrants:
            self._tell(f"warm up {entrant.name}")
            # caches fill as well without the MLPs, which takes a part of the time
            steps, on_drive = self._cell.warmup_steps, self._contest.on_drive
            self._ask(entrant, RunSteps(name=entrant.name, steps=steps, embeddings_only=on_drive))

    def _take_turns(self, build: int) -> None:
        """Give all systems their turns after a build."""
        kinds = [self.series, self.embeddings] if self._contest.on_drive else [self.series]
        for series in kinds:
            for name in series:
                series[name].append([])
        for turn in range(self._contest.turns):
            for series in kinds:
                order = turn + build * self._contest.turns if self._contest.on_drive else turn
                for place in self._orders[order % len(self._orders)]:
                    self._take_turn(self._contest.entrants[place], series)

    def _take_turn(self, entrant: Participant, series: dict[str, Series]) -> None:
        self._tell(entrant.name)
        embeddings_only = series is self.embeddings
        taken = self._ask(
            entrant, RunSteps(name=entrant.name, steps=self._contest.steps, embeddings_only=embeddings_only)
        )
        assert taken is not None
        series[entrant.name][-1].append(taken)
        self._done += 1

    def _ask(self, entrant: Participant, request: BaseModel) -> StepTiming | None:
        """The turn that was asked for; None of another request that was done.

        Raises:
            _Fell: neither came.
        """
        worker = self._workers[entrant.name]
        worker.ask(request)
        answer = worker.answer(self._limits)
        if isinstance(answer, CellResult):
            raise _Fell(entrant, answer)
        return answer if isinstance(answer, StepTiming) else None

    def _tell(self, who: str) -> None:
        if time.monotonic() - self._told < _TELL_EVERY_S:
            return
        self._told = time.monotonic()
        kinds = 2 if self._contest.on_drive else 1
        total = self._cell.builds * self._contest.turns * len(self._contest.entrants) * kinds
        ratios = _ratios(self._contest, self.series)
        self._on_progress(Progress(phase=who, step=self._done, steps=total, ratios=ratios))


def _ratios(contest: TimingGroup, series: Mapping[str, Series]) -> dict[str, float]:
    """Speed relative to the baseline, median over turns, of those that took one."""
    if contest.baseline is None or contest.baseline.record.on_virtual_device:
        return {}
    base = [turn.seconds for build in series[contest.baseline.name] for turn in build]
    ratios = {}
    for name, builds in series.items():
        own = [turn.seconds for build in builds for turn in build]
        pairs = [theirs / ours for theirs, ours in zip(base, own, strict=False)]
        if name != contest.baseline.name and pairs:
            ratios[name] = statistics.median(pairs)
    return ratios
