"""From turns that were taken to what the records of their systems keep."""

from __future__ import annotations

from suite.records.status import Status
from suite.records.turns import DriveTraffic, Turns
from suite.run.agreement import same_arithmetic
from suite.run.messages import Outcome
from suite.run.turns.arrangement import AGAIN, Contest, Entrant, Way
from suite.run.turns.contest import Result, Series


def times_of(contest: Contest, result: Result, *, identity: str) -> dict[str, Turns | Outcome]:
    """By system: its times, or why it has none.

    Args:
        contest: Who took turns.
        result: What came of it.
        identity: Of the contest, equal to no other's.
    """
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
