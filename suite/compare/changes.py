"""What changed between two runs of a cell but its speed: status, verification, quality, memory, hits, bytes moved."""

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from suite.compare.runs import Pair
from suite.records.status import Status
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
    """One quantity of one cell that changed, a field of `Row`; in SI units, in words, and for sorting within a kind.

    None: not known, or does not exist.
    """

    kind: Kind
    quantity: str
    before: float | str | None
    after: float | str | None
    text: str
    size: float


class _Quantity(NamedTuple):
    """A field of `Row` that is a number, and from which difference on it counts as changed.

    Differences up to `tolerance` are left out; it is relative to the value of RUN_A unless `difference` prints an
    absolute one.
    """

    kind: Kind
    field: str
    title: str
    show: Callable[[float | None], str]
    tolerance: float
    difference: Callable[[float], str] | None = None


def changes(pair: Pair) -> list[Change]:
    """Everything but speed that differs by more than its tolerance, in order of kind."""
    return [*_words(pair), *_numbers(pair)]


def _words(pair: Pair) -> Iterator[Change]:
    before, after = pair
    if before.status is not after.status:
        where = f" in phase {after.phase}" if after.phase else ""
        why = f": {one_line(after.reason)}" if after.reason else ""
        yield Change(
            kind=Kind.STATUS,
            quantity="status",
            before=before.status.value,
            after=after.status.value,
            text=f"{before.status} -> {after.status}{where}{why}",
            size=math.inf if before.status is Status.OK else 0.0,
        )
    old, new = before.verified, after.verified
    # How far apart within a tolerance may differ from one run to the next.
    if old is not None and new is not None and old.split()[0] != new.split()[0]:
        yield Change(
            kind=Kind.VERIFICATION,
            quantity="verified",
            before=old,
            after=new,
            text=f"{old} -> {new}{'' if after.passed else ', verification lost'}",
            size=0.0 if after.passed else math.inf,
        )


def _numbers(pair: Pair) -> Iterator[Change]:
    # Where a run has no measurement at all, its status says so.
    if not all(row.measured_rounds for row in pair):
        return
    for quantity in _QUANTITIES:
        if quantity.kind is Kind.QUALITY:
            old, new = _qualities(pair, quantity.field)
        else:
            old, new = (getattr(row, quantity.field) for row in pair)
        found = _difference(quantity, old, new)
        if found is not None:
            size, text = found
            shown = f"{quantity.title} {quantity.show(old)} -> {quantity.show(new)}{text}"
            yield Change(kind=quantity.kind, quantity=quantity.field, before=old, after=new, text=shown, size=size)


def _qualities(pair: Pair, field: str) -> tuple[float | None, float | None]:
    """Means over the rounds that both runs measured, because rounds differ in seed; unknown where they share none."""
    sides = [
        {run.cell.round: getattr(run.measurement.quality, field) for run in row.records if run.measurement is not None}
        for row in pair
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


_DEVICE = {
    "device_rows_bytes": "rows",
    "device_state_bytes": "optimizer state",
    "device_index_bytes": "index",
    "device_staging_bytes": "staging",
    "device_allocated_bytes": "peak allocated",
    "device_reserved_bytes": "peak reserved",
}
_MOVED = {"fetched_bytes_per_step": "fetched", "written_back_bytes_per_step": "written back"}
_QUANTITIES = (
    _Quantity(Kind.QUALITY, "auroc", "AUROC", score, 1e-4, _signed),
    _Quantity(Kind.QUALITY, "accuracy", "accuracy", score, 1e-4, _signed),
    *(_Quantity(Kind.DEVICE_MEMORY, field, title, _megabytes, 0.01) for field, title in _DEVICE.items()),
    _Quantity(Kind.HOST_MEMORY, "host_peak_rss_bytes", "peak resident", _megabytes, 0.05),
    _Quantity(
        Kind.HIT_RATE, "hit_rate", "hit rate", lambda rate: percent(rate, 2), 1e-3,
        lambda by: f"{_signed(100 * by)} points",
    ),
    *(_Quantity(Kind.BYTES_MOVED, field, title, _megabytes, 0.01) for field, title in _MOVED.items()),
)  # fmt: skip
