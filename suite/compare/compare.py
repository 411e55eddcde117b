"""Two runs compared: speed beside the baseline's in both, what else changed, and their environments."""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import NamedTuple

from suite.compare.runs import RunRecords, check_comparable, labels_of
from suite.records.command_line import BadOption
from suite.records.groups import base_name, is_baseline, mixes_virtual
from suite.records.record import Record
from suite.tables.formatting import MISSING, amount, megabytes, percent, score
from suite.tables.rows import Row, one_line
from suite.tables.statistics import Estimate, log_speeds, samples_of, unpaired_ratio

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""


class Unjudged(enum.Enum):
    """Reasons why a change of speed cannot be told from noise, each with a remedy."""

    NOT_MEASURED = ("not timed in both runs", "run systems that end ok in both, and not with another one's kernel")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_BASELINE = ("the baseline itself", "add the systems in question to both runs")
    NO_BASELINE = ("no baseline beside it, in one run at least", "run full_gpu with it, under the same options")
    ANOTHER_MACHINE = (
        "measured on two machines, or with other threads",
        "measure both runs on one machine with as many threads",
    )
    NO_INTERVAL = ("a single build: no interval", "run both with --rounds 3 or more")

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy


class Quantity(NamedTuple):
    """A number of a `Row` that counts as changed from a difference above `tolerance` on.

    The tolerance is relative to the value of RUN_A unless `absolute` formats the difference itself.
    """

    field: str
    title: str
    show: Callable[[float | None], str]
    tolerance: float
    absolute: Callable[[float], str] | None = None


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{amount(abs(value))}"


def _megabytes(value: float | None) -> str:
    return MISSING if value is None else f"{megabytes(value)} MB"


_ON_DEVICE = {"rows": "rows", "state": "optimizer state", "index": "index", "staging": "staging"}
_ON_DEVICE |= {"allocated": "peak allocated", "reserved": "peak reserved"}
QUANTITIES = (
    Quantity("auroc", "AUROC", partial(score, digits=5), 1e-4, _signed),
    Quantity("accuracy", "accuracy", partial(score, digits=5), 1e-4, _signed),
    *(
        Quantity(f"device_{name}_bytes", f"{title} on the device", _megabytes, 0.01)
        for name, title in _ON_DEVICE.items()
    ),
    Quantity("host_peak_rss_bytes", "peak resident on the host", _megabytes, 0.05),
    Quantity("hit_rate", "hit rate", lambda rate: percent(rate, 2), 1e-3, lambda by: f"{_signed(100 * by)} points"),
    Quantity("fetched_bytes_per_step", "fetched per step", _megabytes, 0.01),
    Quantity("written_back_bytes_per_step", "written back per step", _megabytes, 0.01),
)
SPEED, BASELINE_SPEED = "relative speed", "it/s of the baseline"


class Change(NamedTuple):
    """A quantity of a cell that changed; those of the least `order` are listed first."""

    order: int
    quantity: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell that both runs have.

    Attributes:
        ratio: RUN_B's relative speed over RUN_A's; None: there is nothing to compare.
        unjudged: Why the ratio decides nothing; None: it does.
    """

    label: str
    before: Row
    after: Row
    ratio: Estimate | None
    unjudged: Unjudged | None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval of the ratio excludes 1."""
        ratio = self.ratio
        if ratio is None or ratio.low is None or ratio.high is None:
            return False
        return ratio.high < 1 - _ROUNDING or ratio.low > 1 + _ROUNDING

    @property
    def slower(self) -> bool:
        """Whether RUN_B is slower beyond noise."""
        return self.beyond_noise and self.ratio is not None and self.ratio.value < 1

    @property
    def speeds(self) -> str:
        """Relative speeds in both runs, their ratio and its interval."""
        if self.ratio is None or self.before.ratio is None or self.after.ratio is None:
            return MISSING
        low, high = self.ratio.low, self.ratio.high
        interval = "no interval" if low is None or high is None else f"{_ratio(low)} to {_ratio(high)}"
        sides = " -> ".join(amount(side.value) for side in (self.before.ratio, self.after.ratio))
        return f"{sides}: x {_ratio(self.ratio.value)} ({interval})"

    def changes(self) -> Iterator[Change]:
        """Quantities that changed by more than their tolerance."""
        before, after = self.before, self.after
        if self.beyond_noise:
            yield Change(0 if self.slower else 1, SPEED, self.speeds)
        if before.status is not after.status:
            where = f" in phase {after.phase}" if after.phase else ""
            reason = f": {one_line(after.reason)}" if after.reason else ""
            yield Change(2, "status", f"{before.status} -> {after.status}{where}{reason}")
        old, new = before.verified, after.verified
        # how far apart within a tolerance may differ from one run to the next
        if old is not None and new is not None and old.split()[0] != new.split()[0]:
            yield Change(3, "verified", f"{old} -> {new}{'' if after.passed else ', verification lost'}")
        if before.measured_rounds and after.measured_rounds:  # without a measurement, the status says so
            for order, quantity in enumerate(QUANTITIES, start=4):
                values = _values(quantity.field, before, after)
                change = _difference(quantity, *values)
                if change is not None:
                    yield Change(order, quantity.title, f"{' -> '.join(map(quantity.show, values))}{change}")
        if self.unjudged is Unjudged.IS_THE_BASELINE and before.steps_per_s and after.steps_per_s:
            shift = 100 * (after.steps_per_s / before.steps_per_s - 1)
            text = f"{amount(before.steps_per_s)} -> {amount(after.steps_per_s)} ({shift:+.0f} %; no interval)"
            yield Change(99, BASELINE_SPEED, text)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is said of two runs.

    Attributes:
        pairs: Cells of both, in the order of the published tables.
        only_before, only_after: Cells of one run alone, by label.
        differences: Differences of the runs' environments: name, RUN_A's value, RUN_B's.
    """

    before: RunRecords
    after: RunRecords
    pairs: tuple[Pair, ...]
    only_before: dict[str, Row]
    only_after: dict[str, Row]
    differences: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]

    @property
    def unjudged(self) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by reason."""
        found = {reason: [pair.label for pair in self.pairs if pair.unjudged is reason] for reason in Unjudged}
        return {reason: labels for reason, labels in found.items() if labels}


def compare(before: RunRecords, after: RunRecords) -> Comparison:
    """Compare RUN_A with RUN_B, cell by cell.

    Raises:
        BadOption: they are the same files, have no cell in common, one has a cell twice, or one is of a virtual device.
    """
    if mixes_virtual([*before.files.values(), *after.files.values()]):
        raise BadOption(
            "RUN_A and RUN_B: some records are of a virtual device and others were measured, so their numbers are not "
            "set side by side; give two runs of one kind"
        )
    check_comparable(before, after)
    labels = labels_of({**after.rows, **before.rows})
    both = [cell for cell in before.rows if cell in after.rows]
    pairs = tuple(_pair(labels[cell], before.rows[cell], after.rows[cell]) for cell in both)
    return Comparison(
        before=before,
        after=after,
        pairs=pairs,
        only_before={labels[cell]: row for cell, row in before.rows.items() if cell not in after.rows},
        only_after={labels[cell]: row for cell, row in after.rows.items() if cell not in before.rows},
        differences=tuple(_differences(pairs)),
        warnings=tuple(_warnings(before, after, pairs)),
    )


def _pair(label: str, before: Row, after: Row) -> Pair:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.
    """
    rows, ratio = (before, after), None
    ours, theirs = ({(record.key, record.started_at) for record in row.records} for row in rows)
    unjudged: Unjudged | None
    if any(row.steps_per_s is None for row in rows):
        unjudged = Unjudged.NOT_MEASURED
    elif ours & theirs:
        unjudged = Unjudged.SAME_RECORDS
    elif is_baseline(before.system):
        unjudged = Unjudged.IS_THE_BASELINE
    elif any(row.ratio is None for row in rows):
        unjudged = Unjudged.NO_BASELINE
    else:
        ratio = unpaired_ratio(*(samples_of(log_speeds(row.records)) for row in (after, before)))
        elsewhere = Unjudged.ANOTHER_MACHINE if _place(before) != _place(after) else None
        unjudged = Unjudged.NO_INTERVAL if ratio.low is None else elsewhere
    return Pair(label=label, before=before, after=after, ratio=ratio, unjudged=unjudged)


def _place(row: Row) -> tuple[str, int]:
    """The digest of the machine that measured a row, and the threads that torch had there."""
    environment = row.records[0].environment
    return environment.machine, environment.threads


def _ratio(value: float) -> str:
    """Three decimals, or as many as tell it from 0 and from 1."""
    if not 0.1 <= value < 10:
        return amount(value)
    return next((text for text in (f"{value:.{n}f}" for n in (3, 4, 5)) if float(text) != 1 or value == 1), "1.00000")


def _values(field: str, before: Row, after: Row) -> tuple[float | None, float | None]:
    """A quantity in both runs; quality over the rounds that both measured, because rounds differ in seed."""
    if field not in ("auroc", "accuracy"):
        return before.line().get(field), after.line().get(field)
    old, new = before.quality(field), after.quality(field)
    shared = old.keys() & new.keys()
    return (fmean(old[one] for one in shared), fmean(new[one] for one in shared)) if shared else (None, None)


def _difference(quantity: Quantity, old: float | None, new: float | None) -> str | None:
    """Words for the size of a change; None within the tolerance."""
    if old is None or new is None:
        return None if old is new else ""
    by = new - old
    if abs(by) <= quantity.tolerance * (1.0 if quantity.absolute else abs(old)):
        return None
    if quantity.absolute is not None:
        return f" ({quantity.absolute(by)})"
    return f" ({_signed(100 * by / old)} %)" if old else ""


def _differences(pairs: Iterable[Pair]) -> Iterator[tuple[str, str, str]]:
    """Differences between two runs' environments; several values where a run mixes them, the latest last."""
    rows = zip(*((pair.before, pair.after) for pair in pairs), strict=True)
    old, new = (_environment(record for row in side for record in row.records) for side in rows)
    for name in dict.fromkeys([*old, *new]):
        values = [", ".join(side.get(name, ["none"])) for side in (old, new)]
        if values[0] != values[1]:
            yield name, values[0], values[1]


def _environment(records: Iterable[Record]) -> dict[str, dict[str, None]]:
    """Machine, code, threads, packages and how turns were taken: values by name, each once, in order of time."""
    found: dict[str, dict[str, None]] = {}
    for record in sorted(records, key=lambda record: record.order):
        for field, value in record.environment.model_dump(exclude={"machine", "packages"}, exclude_none=True).items():
            if field == "system_code":
                name, shown = f"code of {base_name(record.cell.system)}", str(value)
            elif field.endswith("_bytes"):
                name, shown = field.removesuffix("_bytes").replace("_", " "), f"{amount(value / 1e9)} GB"
            else:
                name, shown = field, str(value)
            found.setdefault(name, {})[shown] = None
        for name, version in sorted(record.environment.packages.items()):
            found.setdefault(name, {})[version] = None
        if record.turns is not None:
            found.setdefault("turns taken", {})[record.turns.way] = None
    return found


def _warnings(before: RunRecords, after: RunRecords, pairs: Sequence[Pair]) -> Iterator[str]:
    """Warnings to read before the numbers."""
    if any(_place(pair.before) != _place(pair.after) for pair in pairs):
        yield "The runs are of two machines, or have other threads: their speed ratios are of machines, not of code."
    for run, rows in ((before, [pair.before for pair in pairs]), (after, [pair.after for pair in pairs])):
        disturbed = [record for row in rows for record in row.records if record.disturbed]
        if disturbed:
            yield (
                f"{run.name} has {len(disturbed)} record{'s' if len(disturbed) > 1 else ''} of a disturbed machine, "
                f"e.g. {disturbed[0].cell.label}: {'; '.join(disturbed[0].disturbed)}; measure them again with --fresh."
            )
