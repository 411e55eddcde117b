"""What changed between two runs of a cell: speed, status, verification, quality, memory, hits and bytes moved."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from suite.compare.runs import Pair
from suite.records.groups import is_baseline
from suite.tables.quantities import MISSING, amount, megabytes, percent, score
from suite.tables.rows import one_line
from suite.tables.statistics import Estimate, log_speeds, unpaired_ratio

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""


class Unjudged(enum.Enum):
    """Why a change of speed cannot be told from noise: what is the matter, and what to do."""

    NOT_MEASURED = ("not timed in both runs", "run systems that end ok in both, and not with another one's kernel")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_BASELINE = ("the baseline itself", "add the systems in question to both runs")
    NO_BASELINE = ("no baseline beside it, in one run at least", "run full_gpu with it, under the same options")
    ANOTHER_MACHINE = ("measured on two machines", "measure both runs on one machine")
    NO_INTERVAL = ("a single build: no interval", "run both with --rounds 3 or more")

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A cell's speed relative to the baseline that took turns with it, in both runs.

    Attributes:
        before, after: The ratios. None: not timed, or no baseline beside it.
        builds: That they rest on, in each run.
        ratio: after / before. None: there is nothing to compare.
        unjudged: Why the ratio decides nothing. None: it does.
    """

    before: float | None
    after: float | None
    builds: tuple[int, int]
    ratio: Estimate | None
    unjudged: Unjudged | None

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


def compare_speeds(pair: Pair) -> Speed:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.
    """
    before, after = (side.row for side in pair)
    unjudged, ratio = _not_comparable(pair), None
    if unjudged is None:
        ratio = unpaired_ratio(*(log_speeds(side.records).values() for side in (pair.after, pair.before)))
        if ratio.low is None:
            unjudged = Unjudged.NO_INTERVAL
        elif pair.another_machine:
            unjudged = Unjudged.ANOTHER_MACHINE
    return Speed(
        before=before.ratio, after=after.ratio, builds=(before.builds, after.builds), ratio=ratio, unjudged=unjudged
    )


def _not_comparable(pair: Pair) -> Unjudged | None:
    rows = [side.row for side in pair]
    ours, theirs = ({(record.key, record.started_at) for record in side.records} for side in pair)
    if any(row.steps_per_s is None for row in rows):
        return Unjudged.NOT_MEASURED
    if ours & theirs:
        return Unjudged.SAME_RECORDS
    if is_baseline(pair.before.cell.system):
        return Unjudged.IS_THE_BASELINE
    return Unjudged.NO_BASELINE if any(row.ratio is None for row in rows) else None


class Kind(enum.Enum):
    """What a change is of, in the order of their listing; the value is the heading."""

    STATUS = "Status"
    VERIFICATION = "Verification"
    QUALITY = "AUROC and accuracy, beyond 0.0001"
    DEVICE_MEMORY = "Device memory, beyond 1 %"
    HOST_MEMORY = "Host memory, beyond 5 %"
    HIT_RATE = "Hit rate, beyond 0.1 points"
    BYTES_MOVED = "Bytes moved per step, beyond 1 %"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One quantity of one cell that changed.

    Attributes:
        quantity: Name of the field of `Row`.
        before, after: In SI units, or a word. None: not known, or does not exist.
        text: For people.
        size: How much, to sort the changes of one kind by.
    """

    kind: Kind
    quantity: str
    before: float | str | None
    after: float | str | None
    text: str
    size: float


@dataclass(frozen=True)
class _Quantity:
    """A number of a row, and from which difference on it counts as changed.

    Attributes:
        field, title: Of `Row`, and what people call it.
        show: A value with its unit.
        tolerance: Differences up to this are left out, relative to the value of RUN_A.
        difference: How a difference is printed whose tolerance is absolute.
    """

    kind: Kind
    field: str
    title: str
    show: Callable[[float | None], str]
    tolerance: float
    difference: Callable[[float], str] | None = None


def changes(pair: Pair) -> list[Change]:
    """Everything but speed that differs by more than its tolerance, in order of kind."""
    return [*_status(pair), *_verification(pair), *_numbers(pair)]


def _status(pair: Pair) -> Iterator[Change]:
    before, after = pair.before.row, pair.after.row
    if before.status is after.status:
        return
    where = f" in phase {after.phase}" if after.phase else ""
    why = f": {one_line(after.reason)}" if after.reason else ""
    yield Change(
        kind=Kind.STATUS,
        quantity="status",
        before=before.status.value,
        after=after.status.value,
        text=f"{before.status} -> {after.status}{where}{why}",
        size=math.inf if pair.before.ok else 0.0,
    )


def _verification(pair: Pair) -> Iterator[Change]:
    """Verified or not, bitwise or not; how far apart within a tolerance may differ from one run to the next."""
    before, after = (side.row.verified for side in pair)
    if before is None or after is None or before.split()[0] == after.split()[0]:
        return
    yield Change(
        kind=Kind.VERIFICATION,
        quantity="verified",
        before=before,
        after=after,
        text=f"{before} -> {after}{'' if pair.after.verified else ', verification lost'}",
        size=0.0 if pair.after.verified else math.inf,
    )


def _numbers(pair: Pair) -> Iterator[Change]:
    # Where a run has no measurement at all, its status says so.
    if not all(side.row.measured_rounds for side in pair):
        return
    for quantity in _QUANTITIES:
        if quantity.kind is Kind.QUALITY:
            old, new = _qualities(pair, quantity.field)
        else:
            old, new = (getattr(side.row, quantity.field) for side in pair)
        found = _difference(quantity, old, new)
        if found is not None:
            size, text = found
            shown = f"{quantity.title} {quantity.show(old)} -> {quantity.show(new)}{text}"
            yield Change(kind=quantity.kind, quantity=quantity.field, before=old, after=new, text=shown, size=size)


def _qualities(pair: Pair, field: str) -> tuple[float | None, float | None]:
    """Means over the rounds that both runs measured, because rounds differ in seed; unknown where they share none."""
    sides = [
        {run.cell.round: getattr(run.measurement.quality, field) for run in side.records if run.measurement is not None}
        for side in pair
    ]
    shared = sorted(sides[0].keys() & sides[1].keys())
    if not shared:
        return None, None
    before, after = (fmean(side[number] for number in shared) for side in sides)
    return before, after


def _difference(quantity: _Quantity, old: float | None, new: float | None) -> tuple[float, str] | None:
    """Size of a change and how it is printed; None where it is within the tolerance."""
    if old is None or new is None or not (math.isfinite(old) and math.isfinite(new)):
        # NaN, of a run that diverged, is a change like one from known to unknown.
        known = [value for value in (old, new) if value is not None and math.isfinite(value)]
        return (math.inf, "") if len(known) == 1 or (old is None) != (new is None) else None
    if abs(new - old) <= quantity.tolerance * (1.0 if quantity.difference else abs(old)):
        return None
    if quantity.difference is not None:
        return abs(new - old), f" ({quantity.difference(new - old)})"
    return (abs(new / old - 1), f" ({_signed(100 * (new / old - 1))} %)") if old else (math.inf, "")


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{amount(abs(value))}"


def _megabytes(value: float | None) -> str:
    return MISSING if value is None else f"{megabytes(value)} MB"


_DEVICE = (
    ("device_rows_bytes", "rows"),
    ("device_state_bytes", "optimizer state"),
    ("device_index_bytes", "index"),
    ("device_staging_bytes", "staging"),
    ("device_allocated_bytes", "peak allocated"),
    ("device_reserved_bytes", "peak reserved"),
)
_MOVED = (("fetched_bytes_per_step", "fetched"), ("written_back_bytes_per_step", "written back"))
_QUANTITIES = (
    _Quantity(Kind.QUALITY, "auroc", "AUROC", score, 1e-4, _signed),
    _Quantity(Kind.QUALITY, "accuracy", "accuracy", score, 1e-4, _signed),
    *(_Quantity(Kind.DEVICE_MEMORY, field, title, _megabytes, 0.01) for field, title in _DEVICE),
    _Quantity(Kind.HOST_MEMORY, "host_peak_rss_bytes", "peak resident", _megabytes, 0.05),
    _Quantity(
        Kind.HIT_RATE, "hit_rate", "hit rate", lambda rate: percent(rate, 2), 1e-3,
        lambda by: f"{_signed(100 * by)} points",
    ),
    *(_Quantity(Kind.BYTES_MOVED, field, title, _megabytes, 0.01) for field, title in _MOVED),
)  # fmt: skip
