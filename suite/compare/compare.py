"""Two runs compared: every common cell with its speed and its changes, what only one has, and where they ran."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from suite.compare.changes import Change, Kind, Speed, Unjudged, changes, compare_speeds
from suite.compare.environments import Difference, differences, warnings
from suite.compare.runs import Labels, Pair, Run, Side, match

_NOTHING_TO_SAY = (None, Unjudged.ANOTHER_MACHINE, Unjudged.NOT_MEASURED, Unjudged.IS_THE_BASELINE)


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
        return not self.changes and not self.speed.beyond_noise and self.speed.unjudged in _NOTHING_TO_SAY


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is said of two runs.

    Attributes:
        cells: In the order of the published tables.
        only_before, only_after: Labels of the cells that one run lacks, with the cells.
        differences: Between the environments.
        warnings: To be read before the numbers.
    """

    before: Run
    after: Run
    cells: tuple[Compared, ...]
    only_before: tuple[tuple[str, Side], ...]
    only_after: tuple[tuple[str, Side], ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    @cached_property
    def beyond_noise(self) -> list[Compared]:
        """Cells whose speed changed: slower before faster, largest first."""
        found = [cell for cell in self.cells if cell.speed.beyond_noise]

        def order(cell: Compared) -> tuple[bool, float]:
            ratio = cell.speed.ratio
            return not cell.speed.slower, -abs(math.log(ratio.value)) if ratio is not None else 0.0

        return sorted(found, key=order)

    @property
    def baselines(self) -> list[Compared]:
        """The cells that the others are measured against, where both runs timed them anew."""
        return [cell for cell in self.cells if cell.speed.unjudged is Unjudged.IS_THE_BASELINE]

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


def compare(before: Run, after: Run) -> Comparison:
    """Compare RUN_A with RUN_B.

    Raises:
        NoComparison: they are the same files, or have no cell in common.
    """
    matched = match(before, after)
    labels = Labels(before, after)
    return Comparison(
        before=before,
        after=after,
        cells=tuple(
            Compared(label=labels.of(pair.before), pair=pair, speed=compare_speeds(pair), changes=tuple(changes(pair)))
            for pair in matched.pairs
        ),
        only_before=tuple((labels.of(side), side) for side in matched.only_before),
        only_after=tuple((labels.of(side), side) for side in matched.only_after),
        differences=tuple(differences(before, after, matched)),
        warnings=tuple(warnings(before, after, matched)),
    )
