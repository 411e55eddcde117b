"""The gate of `--fail-if-slower`: what it fails, what it cannot judge, and that it never passes without judging."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from suite.compare.compare import Comparison, Unjudged
from suite.compare.runs import NoComparison
from suite.records.record import Status

PASSED, FAILED, NOTHING_JUDGED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Result of the gate, where the share `threshold` of speed may be lost.

    Attributes:
        judged: How many cells have a change of speed that could be told from noise.
        failures: One sentence each.
        noisy: Labels of judged cells whose interval is so wide that such a loss would not have been seen.
        unjudged: Labels of cells whose speed decides nothing, by reason.
    """

    threshold: float
    judged: int
    failures: tuple[str, ...]
    noisy: tuple[str, ...]
    unjudged: dict[Unjudged, list[str]]

    @property
    def exit_code(self) -> int:
        """1 where something failed; 2 where no speed could be judged, which must not look like a pass."""
        return FAILED if self.failures else PASSED if self.judged else NOTHING_JUDGED

    @property
    def remedies(self) -> list[str]:
        """Remedies so that the gate can judge."""
        return [f"{reason.reason}: {reason.remedy}" for reason in self.unjudged]

    def content(self) -> dict[str, object]:
        """All of it for JSON."""
        return {
            "fail_if_slower": self.threshold,
            "exit_code": self.exit_code,
            "judged": self.judged,
            "failures": self.failures,
            "too_noisy": self.noisy,
            "not_judged": {reason.reason: labels for reason, labels in self.unjudged.items()},
        }


def parse_share(text: str) -> float:
    """The share of speed that may be lost: `10%`, `10 %` or `0.1`.

    Raises:
        NoComparison: it is no share from 0 to below 1.
    """
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if rest.strip() or not 0 <= value < 1:  # NaN compares false with everything
        raise NoComparison(f"--fail-if-slower: '{text}' is no share of speed: write 10% or 0.1, from 0 to below 1")
    return value


def judge(comparison: Comparison, threshold: float) -> GateResult:
    """Decide whether RUN_B may pass.

    A cell fails that

    - is slower by more than `threshold`: its speed beside the baseline's in RUN_B, over the same in RUN_A, is below
      `1 - threshold`, and the 95 % interval lies below 1, so that noise alone fails nothing. Speeds of two machines, or
      with other threads, are not judged;
    - was ok in RUN_A and is not in RUN_B, or is missing there;
    - was verified in RUN_A and is not in RUN_B.
    """
    both, cells = comparison.both, comparison.cells
    judged = both[both["unjudged"].isna()]
    failures = [sentence for cell in both.to_dict("records") for sentence in _failures(cell, threshold)]
    gone = cells[cells["in_run"] == "left_only"]
    failures += [
        f"{label}: ok in RUN_A, missing from RUN_B"
        for label, row in zip(gone["label"], gone["row_a"], strict=True)
        if row.status is Status.OK
    ]
    shown = judged["high"] / judged["ratio"] * (1 - threshold) < 1  # a loss of the threshold would lie beyond noise
    noisy = judged.loc[~judged["beyond_noise"] & ~shown, "label"] if threshold else ()
    return GateResult(
        threshold=threshold,
        judged=len(judged),
        failures=tuple(failures),
        noisy=tuple(noisy),
        unjudged=comparison.unjudged(*Unjudged),
    )


def _failures(cell: dict[str, Any], threshold: float) -> Iterator[str]:
    label, before, after, ratio = cell["label"], cell["row_a"], cell["row_b"], cell["ratio"]
    if before.status is Status.OK and after.status is not Status.OK:
        yield f"{label}: ok in RUN_A, {after.status} in RUN_B"
    elif before.passed and not after.passed:
        yield f"{label}: verified in RUN_A, not in RUN_B"
    if cell["unjudged"] is None and cell["beyond_noise"] and ratio < 1 - threshold:
        yield f"{label}: slower by {100 * (1 - ratio):.1f} %, more than {100 * threshold:g} %"
