"""What else changed between two runs of a cell: status, verification, quality, memory, hits and bytes moved."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from suite.compare.matching import Pair
from suite.tables.quantities import MISSING, amount, megabytes, percent, score
from suite.tables.rows import one_line


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
        field: Name of the field of `Row`.
        title: What people call it.
        show: A value with its unit.
        tolerance: Differences up to this are left out, absolute or relative to the value of RUN_A.
        relative: Whether the tolerance is relative.
        scale, unit: How an absolute difference is printed.
    """

    kind: Kind
    field: str
    title: str
    show: Callable[[float | None], str]
    tolerance: float
    relative: bool = True
    scale: float = 1.0
    unit: str = ""


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
    texts = [side.row.verified for side in pair]
    classes = [text and text.partition(" ")[0] for text in texts]
    if classes[0] == classes[1] or None in texts:
        return
    yield Change(
        kind=Kind.VERIFICATION,
        quantity="verified",
        before=texts[0],
        after=texts[1],
        text=f"{texts[0]} -> {texts[1]}{'' if pair.after.verified else ', verification lost'}",
        size=0.0 if pair.after.verified else math.inf,
    )


def _numbers(pair: Pair) -> Iterator[Change]:
    # Where a run has no measurement at all, its status says so.
    if not all(side.row.measured_rounds for side in pair):
        return
    for quantity in _QUANTITIES:
        of_quality = quantity.kind is Kind.QUALITY
        old, new = _qualities(pair, quantity.field) if of_quality else _of_rows(pair, quantity.field)
        if not _differs(quantity, old, new):
            continue
        size, text = _difference(quantity, old, new)
        yield Change(
            kind=quantity.kind,
            quantity=quantity.field,
            before=old,
            after=new,
            text=f"{quantity.title} {quantity.show(old)} -> {quantity.show(new)}{text}",
            size=size,
        )


def _of_rows(pair: Pair, field: str) -> tuple[float | None, float | None]:
    return getattr(pair.before.row, field), getattr(pair.after.row, field)


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


def _differs(quantity: _Quantity, old: float | None, new: float | None) -> bool:
    known = [value for value in (old, new) if value is not None and math.isfinite(value)]
    if old is None or new is None or len(known) < 2:
        # NaN, of a run that diverged, is a change like one from known to unknown.
        return (old is None) != (new is None) or len(known) == 1
    return abs(new - old) > quantity.tolerance * (abs(old) if quantity.relative else 1.0)


def _difference(quantity: _Quantity, old: float | None, new: float | None) -> tuple[float, str]:
    """Size of a change and how it is printed."""
    if old is None or new is None or not math.isfinite(old) or not math.isfinite(new):
        return math.inf, ""
    if not quantity.relative:
        return abs(new - old), f" ({_signed((new - old) * quantity.scale)}{quantity.unit})"
    if old == 0:
        return math.inf, ""
    return abs(new / old - 1), f" ({_signed(100 * (new / old - 1))} %)"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{amount(abs(value))}"


def _percent(value: float | None) -> str:
    return percent(value, 2)


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
    _Quantity(Kind.QUALITY, "auroc", "AUROC", score, tolerance=1e-4, relative=False),
    _Quantity(Kind.QUALITY, "accuracy", "accuracy", score, tolerance=1e-4, relative=False),
    *(_Quantity(Kind.DEVICE_MEMORY, field, title, _megabytes, tolerance=0.01) for field, title in _DEVICE),
    _Quantity(Kind.HOST_MEMORY, "host_peak_rss_bytes", "peak resident", _megabytes, tolerance=0.05),
    _Quantity(
        Kind.HIT_RATE,
        "hit_rate",
        "hit rate",
        _percent,
        tolerance=1e-3,
        relative=False,
        scale=100,
        unit=" points",
    ),
    *(_Quantity(Kind.BYTES_MOVED, field, title, _megabytes, tolerance=0.01) for field, title in _MOVED),
)
