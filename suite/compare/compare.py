"""Two runs compared: every common cell with its speed and its changes, what only one has, and where they ran."""

import json
import math
from dataclasses import dataclass

from suite.compare.changes import Change, Kind, changes
from suite.compare.environments import Difference, differences, warnings
from suite.compare.runs import Labels, Pair, Run, Side, match
from suite.compare.speeds import Speed, Unjudged, compare_speeds

_NOTHING_TO_SAY = (None, Unjudged.ANOTHER_MACHINE, Unjudged.NOT_MEASURED, Unjudged.IS_THE_BASELINE)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A cell that both runs have; `changes` are all but speed."""

    label: str
    pair: Pair
    speed: Speed
    changes: tuple[Change, ...]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to say of it."""
        return not self.changes and not self.speed.beyond_noise and self.speed.unjudged in _NOTHING_TO_SAY

    def content(self) -> dict[str, object]:
        """All of it for JSON."""
        speed, ratio = self.speed, self.speed.ratio
        found = _named(self.label, self.pair.before)
        for letter, side in zip("ab", self.pair, strict=True):
            found |= {
                f"machine_{letter}": side.group.key.machine,
                f"status_{letter}": side.row.status,
                f"verified_{letter}": side.row.verified,
                f"samples_per_s_{letter}": side.row.samples_per_s,
            }
        found["relative_speed"] = {
            "a": speed.before,
            "b": speed.after,
            "builds_a": speed.builds[0],
            "builds_b": speed.builds[1],
            "ratio": ratio and ratio.value,
            "low": ratio and ratio.low,
            "high": ratio and ratio.high,
            "beyond_noise": speed.beyond_noise,
            "not_judged": speed.unjudged and speed.unjudged.reason,
        }
        found["changes"] = [
            {"quantity": one.quantity, "a": _plain(one.before), "b": _plain(one.after), "text": one.text}
            for one in self.changes
        ]
        return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is said of two runs; `only_...` are labels of the cells that the other lacks, with the cells."""

    before: Run
    after: Run
    cells: tuple[Compared, ...]
    only_before: tuple[tuple[str, Side], ...]
    only_after: tuple[tuple[str, Side], ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    @property
    def beyond_noise(self) -> list[Compared]:
        """Cells whose speed changed: slower before faster, largest first."""

        def order(cell: Compared) -> tuple[bool, float]:
            ratio = cell.speed.ratio
            return not cell.speed.slower, -abs(math.log(ratio.value)) if ratio is not None else 0.0

        return sorted((cell for cell in self.cells if cell.speed.beyond_noise), key=order)

    def changed(self, kind: Kind) -> list[tuple[str, Change]]:
        """Label and change of every cell, largest first."""
        found = [(cell.label, change) for cell in self.cells for change in cell.changes if change.kind is kind]
        return sorted(found, key=lambda item: -item[1].size)

    def unjudged(self, *reasons: Unjudged) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by the reasons asked for."""
        found = {reason: [c.label for c in self.cells if c.speed.unjudged is reason] for reason in reasons}
        return {reason: labels for reason, labels in found.items() if labels}

    def to_json(self, gate: dict[str, object] | None) -> str:
        """The whole comparison, with what the gate found, as one JSON object in SI units; what is missing is null."""
        content = {
            "run_a": _run(self.before),
            "run_b": _run(self.after),
            "environment": [{"name": one.name, "a": one.before, "b": one.after} for one in self.differences],
            "warnings": self.warnings,
            "cells": [cell.content() for cell in self.cells],
            "only_in_a": [_only(label, side) for label, side in self.only_before],
            "only_in_b": [_only(label, side) for label, side in self.only_after],
            "gate": gate,
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def compare(before: Run, after: Run) -> Comparison:
    """Compare RUN_A with RUN_B.

    Raises:
        NoComparison: they are the same files, or have no cell in common.
    """
    matched, labels = match(before, after), Labels(before, after)
    return Comparison(
        before=before,
        after=after,
        cells=tuple(
            Compared(label=labels.of(pair.before), pair=pair, speed=compare_speeds(pair), changes=tuple(changes(pair)))
            for pair in matched.pairs
        ),
        only_before=tuple((labels.of(side), side) for side in matched.only_before),
        only_after=tuple((labels.of(side), side) for side in matched.only_after),
        differences=tuple(differences(matched.pairs)),
        warnings=tuple(warnings(before, after, matched.pairs)),
    )


def _run(run: Run) -> dict[str, object]:
    return {
        "path": str(run.path),
        "records": sum(len(side.records) for side in run.sides),
        "problems": [{"path": str(problem.path), "reason": problem.reason} for problem in run.problems],
    }


def _named(label: str, side: Side) -> dict[str, object]:
    cell = side.cell
    return {"label": label, "system": cell.system, "workload": cell.workload, "setting": cell.setting}


def _only(label: str, side: Side) -> dict[str, object]:
    return _named(label, side) | {"machine": side.group.key.machine, "status": side.row.status}


def _plain(value: float | str | None) -> float | str | None:
    """JSON has no NaN: as in records, it is a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
