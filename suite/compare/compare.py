"""Two runs compared: every common cell with its speed and its changes, what only one has, and where they ran."""

import json
import math
from dataclasses import dataclass

from suite.compare.changes import Change, Kind, changes
from suite.compare.environments import Difference, differences, warnings
from suite.compare.runs import NoComparison, Pair, Run, labels, machine, match
from suite.compare.speeds import Unjudged, compare_speeds
from suite.records.groups import mixes_virtual
from suite.tables.rows import Row
from suite.tables.statistics import Estimate

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""
_NOTHING_TO_SAY = (None, Unjudged.ANOTHER_MACHINE, Unjudged.NOT_MEASURED, Unjudged.IS_THE_BASELINE)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A cell that both runs have.

    Attributes:
        ratio: RUN_B's speed over RUN_A's, each relative to the baseline beside it. None: there is nothing to compare.
        unjudged: Why the ratio decides nothing. None: it does.
        changes: All but speed.
    """

    label: str
    pair: Pair
    ratio: Estimate | None
    unjudged: Unjudged | None
    changes: tuple[Change, ...]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to say of it."""
        return not self.changes and not self.beyond_noise and self.unjudged in _NOTHING_TO_SAY

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes 1."""
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None:
            return False
        return self.ratio.high < 1 - _ROUNDING or self.ratio.low > 1 + _ROUNDING

    @property
    def slower(self) -> bool:
        """Whether RUN_B is slower beyond noise."""
        return self.beyond_noise and self.ratio is not None and self.ratio.value < 1

    def shows(self, loss: float) -> bool:
        """Whether a loss of this share of speed would lie beyond noise, given the width of the interval."""
        if self.ratio is None or self.ratio.high is None:
            return False
        return self.ratio.high / self.ratio.value * (1 - loss) < 1

    def content(self) -> dict[str, object]:
        """All of it for JSON."""
        ratio, (before, after) = self.ratio, self.pair
        found = _named(self.label, self.pair.before)
        for letter, row in zip("ab", self.pair, strict=True):
            found |= {
                f"machine_{letter}": machine(row),
                f"status_{letter}": row.status,
                f"verified_{letter}": row.verified,
                f"samples_per_s_{letter}": row.samples_per_s,
            }
        found["relative_speed"] = {
            "a": before.ratio,
            "b": after.ratio,
            "builds_a": before.builds,
            "builds_b": after.builds,
            "ratio": ratio and ratio.value,
            "low": ratio and ratio.low,
            "high": ratio and ratio.high,
            "beyond_noise": self.beyond_noise,
            "not_judged": self.unjudged and self.unjudged.reason,
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
    only_before: tuple[tuple[str, Row], ...]
    only_after: tuple[tuple[str, Row], ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    @property
    def beyond_noise(self) -> list[Compared]:
        """Cells whose speed changed: slower before faster, largest first."""

        def order(cell: Compared) -> tuple[bool, float]:
            return not cell.slower, -abs(math.log(cell.ratio.value)) if cell.ratio is not None else 0.0

        return sorted((cell for cell in self.cells if cell.beyond_noise), key=order)

    def changed(self, kind: Kind) -> list[tuple[str, Change]]:
        """Label and change of every cell, largest first."""
        found = [(cell.label, change) for cell in self.cells for change in cell.changes if change.kind is kind]
        return sorted(found, key=lambda item: -item[1].size)

    def unjudged(self, *reasons: Unjudged) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by the reasons asked for."""
        found = {reason: [cell.label for cell in self.cells if cell.unjudged is reason] for reason in reasons}
        return {reason: labels for reason, labels in found.items() if labels}

    def to_json(self, gate: dict[str, object] | None) -> str:
        """The whole comparison, with what the gate found, as one JSON object in SI units; what is missing is null."""
        content = {
            "run_a": _run(self.before),
            "run_b": _run(self.after),
            "environment": [{"name": one.name, "a": one.before, "b": one.after} for one in self.differences],
            "warnings": self.warnings,
            "cells": [cell.content() for cell in self.cells],
            "only_in_a": [_only(label, row) for label, row in self.only_before],
            "only_in_b": [_only(label, row) for label, row in self.only_after],
            "gate": gate,
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def compare(before: Run, after: Run) -> Comparison:
    """Compare RUN_A with RUN_B.

    Raises:
        NoComparison: they are the same files, have no cell in common, or one is of a virtual device.
    """
    if mixes_virtual([*before.files.values(), *after.files.values()]):
        raise NoComparison(
            "RUN_A and RUN_B: some records are of a virtual device and others were measured, so their numbers are not "
            "set side by side; give two runs of one kind"
        )
    pairs, *only = match(before, after)
    label = labels(before, after)
    only_before, only_after = (tuple((label(row), row) for row in rows) for rows in only)
    return Comparison(
        before=before,
        after=after,
        cells=tuple(
            Compared(label=label(pair.before), pair=pair, ratio=ratio, unjudged=unjudged, changes=tuple(changes(pair)))
            for pair, (ratio, unjudged) in zip(pairs, map(compare_speeds, pairs), strict=True)
        ),
        only_before=only_before,
        only_after=only_after,
        differences=tuple(differences(pairs)),
        warnings=tuple(warnings(before, after, pairs)),
    )


def _run(run: Run) -> dict[str, object]:
    return {
        "path": str(run.path),
        "records": sum(len(row.records) for row in run.rows),
        "problems": [{"path": str(problem.path), "reason": problem.reason} for problem in run.problems],
    }


def _named(label: str, row: Row) -> dict[str, object]:
    cell = row.cell
    return {"label": label, "system": cell.system, "workload": cell.workload, "setting": cell.setting}


def _only(label: str, row: Row) -> dict[str, object]:
    return _named(label, row) | {"machine": machine(row), "status": row.status}


def _plain(value: float | str | None) -> float | str | None:
    """JSON has no NaN: as in records, it is a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
