"""Two runs compared: every common cell with its speed and its changes, what only one has, and where they ran."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from suite.compare.changes import Change, Kind, changes
from suite.compare.environments import Difference, differences, warnings
from suite.compare.matching import Labels, Pair, match
from suite.compare.runs import NoComparison, Run, Side
from suite.compare.speeds import Speed, Unjudged, compare_speeds

_NOTHING_TO_SAY = (None, Unjudged.ANOTHER_MACHINE, Unjudged.NOT_MEASURED)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A cell that both runs have.

    Attributes:
        label: System, workload, and what tells it from others.
        changes: All but speed.
    """

    label: str
    pair: Pair
    speed: Speed
    changes: tuple[Change, ...]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to say of it."""
        speed = self.speed
        if self.changes or speed.beyond_noise or speed.without_interval:
            return False
        return speed.unjudged in _NOTHING_TO_SAY


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is said of two runs.

    Attributes:
        normalize_by: The system that throughput was divided by; None: it was not.
        cells: In the order of the published tables.
        only_before, only_after: Labels of the cells that one run lacks, with the cells.
        differences: Between the environments.
        warnings: To be read before the numbers.
    """

    before: Run
    after: Run
    normalize_by: str | None
    cells: tuple[Compared, ...]
    only_before: tuple[tuple[str, Side], ...]
    only_after: tuple[tuple[str, Side], ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    @cached_property
    def beyond_noise(self) -> list[Compared]:
        """Cells whose speed changed: slower before faster, largest first."""
        found = [cell for cell in self.cells if cell.speed.beyond_noise]
        return sorted(found, key=lambda cell: (not cell.speed.slower, -_size(cell.speed)))

    @cached_property
    def one_round(self) -> list[Compared]:
        """Cells whose speed has no interval, slowest first."""
        found = [cell for cell in self.cells if cell.speed.without_interval]
        return sorted(found, key=lambda cell: math.inf if cell.speed.ratio is None else cell.speed.ratio.value)

    @property
    def quiet(self) -> list[Compared]:
        """Cells without any change beyond noise."""
        return [cell for cell in self.cells if cell.quiet]

    def changed(self, kind: Kind) -> list[tuple[str, Change]]:
        """Label and change of every cell, largest first."""
        found = [(cell.label, change) for cell in self.cells for change in cell.changes if change.kind is kind]
        return sorted(found, key=lambda item: -item[1].size)

    def unjudged(self, *reasons: Unjudged) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by the reasons asked for."""
        found = {reason: [c.label for c in self.cells if c.speed.unjudged is reason] for reason in reasons}
        return {reason: labels for reason, labels in found.items() if labels}


def compare(before: Run, after: Run, *, normalize_by: str | None = None) -> Comparison:
    """Compare two runs.

    Args:
        before: RUN_A.
        after: RUN_B.
        normalize_by: A system by whose throughput every other's is divided, in the same run, setting and round.

    Raises:
        NoComparison: they are the same files, have no cell in common, or one has not measured `normalize_by`.
    """
    matched = match(before, after)
    if normalize_by is not None:
        _check_divisor(normalize_by, before, after)
    labels = Labels(before, after)
    return Comparison(
        before=before,
        after=after,
        normalize_by=normalize_by,
        cells=tuple(
            Compared(
                label=labels.of(pair.before),
                pair=pair,
                speed=compare_speeds(pair, normalize_by=normalize_by),
                changes=tuple(changes(pair)),
            )
            for pair in matched.pairs
        ),
        only_before=_labelled(matched.only_before, labels),
        only_after=_labelled(matched.only_after, labels),
        differences=tuple(differences(before, after, matched)),
        warnings=tuple(warnings(before, after, matched)),
    )


def divisor_speeds(comparison: Comparison) -> list[tuple[str, Speed]]:
    """How the system of `normalize_by` changed itself, which normalised ratios leave out."""
    return [
        (cell.label, compare_speeds(cell.pair))
        for cell in comparison.cells
        if cell.speed.unjudged is Unjudged.IS_THE_MEASURE
    ]


def _check_divisor(system: str, *runs: Run) -> None:
    for run in runs:
        measured = sorted({side.cell.system for side in run.sides if side.speeds})
        if system not in measured:
            raise NoComparison(
                f"--normalize-by: {run.name} has not measured '{system}'; measured there: "
                f"{', '.join(measured) or 'nothing'}"
            )


def _labelled(sides: Iterable[Side], labels: Labels) -> tuple[tuple[str, Side], ...]:
    return tuple((labels.of(side), side) for side in sides)


def _size(speed: Speed) -> float:
    return abs(math.log(speed.ratio.value)) if speed.ratio is not None else 0.0
