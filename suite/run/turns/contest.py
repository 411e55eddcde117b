"""Parent's side of a timing group: start workers, build systems, time them in balanced orders, keep the times."""

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
from suite.run.turns.arrangement import BASELINE_REPEAT, Participant, TimingGroup, balanced_orders

_TELL_EVERY_S = 0.5

Series = list[list[StepTiming]]
"""Turns by build."""


@dataclass
class Result:
    """Result of a timing group.

    Attributes:
        series: Turns by name, of participants that finished.
        embeddings: The same for turns without the MLPs, if there were any.
        own_process: Names of participants that finished in a process of their own.
        failed: Failures by name, of the other participants.
    """

    series: dict[str, Series] = field(default_factory=dict)
    embeddings: dict[str, Series] = field(default_factory=dict)
    own_process: set[str] = field(default_factory=set)
    failed: dict[str, CellResult] = field(default_factory=dict)


class _Fell(Exception):
    """A system made its worker exit or fail."""

    def __init__(self, entrant: Participant, outcome: CellResult) -> None:
        super().__init__(outcome.reason)
        self.entrant = entrant
        self.outcome = outcome


def hold(contest: TimingGroup, *, limits: Limits, log: Path, on_progress: OnProgress = lambda _: None) -> Result:
    """Time the systems of a group; progress counts the turns of all systems, with the participant's name as the phase.

    If one of them ends the process that it shares, all start again, that one in a process of its own. If it ends that
    one too, the others start again without it. `log` gets the output of the shared worker; workers of systems in a
    process of their own write to files beside it.
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
                names = [gone.name] if gone is not contest.baseline else [gone.name, gone.name + BASELINE_REPEAT]
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
    """One attempt to time all participants; its series are those of a `Result`."""

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
        """Build and time all systems, as many times as the cells' `builds`.

        Raises:
            _Fell: a system made its worker exit or fail.
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
        """Steps of a system after a build."""
        steps = self._contest.turns * self._contest.steps
        # systems on a drive are built once, and take the same number of turns without the MLPs
        return self._cell.warmup_steps + steps * (2 * self._cell.builds if self._contest.on_drive else 1)

    def _build(self, hosts: list[Participant]) -> None:
        """Build new instances of all systems, and warm them up."""
        for host in hosts:
            self._ask(host, Clear())
        for entrant in self._contest.entrants:
            self._tell(f"build {entrant.name}")
            self._ask(entrant, Build(name=entrant.name))
        for entrant in self._contest.entrants:
            self._tell(f"warm up {entrant.name}")
            # caches fill without the MLPs too, in a fraction of the time
            steps, on_drive = self._cell.warmup_steps, self._contest.on_drive
            self._ask(entrant, RunSteps(name=entrant.name, steps=steps, embeddings_only=on_drive))

    def _take_turns(self, build: int) -> None:
        """Time all turns of all systems after a build."""
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
        """Send a request. Returns the timing of `RunSteps`, None for other requests.

        Raises:
            _Fell: the worker failed.
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
    """Speed relative to the baseline by name, median over turns, of participants with a turn."""
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
