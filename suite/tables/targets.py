"""Samples to a target AUROC, between the points at which quality was looked at while training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from suite.records.record import Measurement


def reached_near_the_end(rounds: Sequence[Measurement]) -> float | None:
    """The AUROC of a system's last point but one, mean over rounds; None where a round has no two points."""
    points = [_points(measurement) for measurement in rounds]
    enough = bool(points) and all(len(of_round) >= 2 for of_round in points)
    return statistics.fmean(of_round[-2][1] for of_round in points) if enough else None


def samples_to(target: float | None, rounds: Sequence[Measurement]) -> float | None:
    """Samples trained on until the target was reached, mean over rounds; None where a round does not reach it."""
    if target is None:
        return None
    known = [samples for one in rounds if (samples := _crossing(target, _points(one))) is not None]
    return statistics.fmean(known) if known and len(known) == len(rounds) else None


def _points(measurement: Measurement) -> list[tuple[int, float]]:
    return [(point.samples, point.auroc) for point in measurement.quality.points if point.auroc is not None]


def _crossing(target: float, points: Sequence[tuple[int, float]]) -> float | None:
    """Where straight lines between the points first reach the target."""
    for number, (samples, auroc) in enumerate(points):
        if auroc >= target:
            if number == 0:
                return samples
            before, less = points[number - 1]
            return before + (samples - before) * (target - less) / (auroc - less)
    return None
