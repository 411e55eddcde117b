"""Two runs compared: speed beside the baseline's in both, what else changed, and their environments."""

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from suite.records.command_line import BadOption
from suite.records.groups import base_name, group_records, is_baseline, mixes_virtual
from suite.records.record import Cell, Record
from suite.records.store import NotARecord, RecordStore
from suite.tables.formatting import MISSING, amount, megabytes, percent, relative
from suite.tables.rows import Row, merged_rows, one_line
from suite.tables.settings import SIZES, cache
from suite.tables.statistics import Estimate, log_speeds, ratio_of, samples_of

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""
_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", *SIZES)
CellKey = tuple[str, str]
"""Setting and system: the whole configuration of a cell, less its round."""


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """A run: its systems in the order of the published tables, and files that were skipped; `name` is for messages."""

    name: str
    path: Path
    rows: dict[CellKey, Row]
    problems: list[NotARecord]

    @property
    def records(self) -> list[Record]:
        """Those behind the rows: of each round the newest."""
        return [record for row in self.rows.values() for record in row.records]


def read_run(name: str, path: Path) -> RunRecords:
    """Read a results directory; `name` is `RUN_A` or `RUN_B`.

    Raises:
        BadOption: it has no records, none that can be read, or a cell of several machines or numbers of threads.
    """
    store = RecordStore(path)
    if not store.directory.is_dir():
        raise BadOption(f"{name}: {path} has no records/: give a results directory, as `run_bench.py --out` named it")
    records, problems = store.load_all()
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise BadOption(f"{name}: {path} holds no record that can be compared{skipped}; give another, or measure it")
    rows: dict[CellKey, Row] = {}
    for row in (row for group in group_records(records) for row in merged_rows(group)):
        if rows.setdefault((row.cell.setting, row.system), row) is not row:
            raise BadOption(
                f"{name}: {path} has cells of several machines, or with other threads; give each machine's records as "
                "a directory of its own"
            )
    return RunRecords(name=name, path=path, rows=rows, problems=problems)


class Unjudged(enum.StrEnum):
    """Reasons why a change of speed cannot be told from noise, each with a remedy."""

    NOT_MEASURED = "not timed in both runs: run systems that end ok in both, and not with another one's kernel"
    SAME_RECORDS = "the same records in both runs: measure RUN_B anew, into a directory of its own"
    IS_THE_BASELINE = "the baseline itself: add the systems in question to both runs"
    NO_BASELINE = "no baseline beside it in one run at least: run full_gpu with it, under the same options"
    ANOTHER_MACHINE = "measured on two machines, or with other threads: measure both runs on one machine"
    NO_INTERVAL = "a single build, so no interval: run both with --rounds 3 or more"


class Quantity(NamedTuple):
    """A number of a `Row`, which changed if it differs by more than a share of RUN_A's value, or by `absolute`."""

    field: str
    title: str
    show: Callable[[float], str]
    share: float = 0.0
    absolute: float = 0.0

    def differ(self, old: float | None, new: float | None) -> bool:
        """Whether two values differ by more than that, or one of them is missing."""
        if old is None or new is None:
            return old is not new
        return abs(new - old) > self.share * abs(old) + self.absolute


def _megabytes(value: float) -> str:
    return f"{megabytes(value)} MB"


_ON_DEVICE = {"rows": "rows", "state": "optimizer state", "index": "index", "staging": "staging"}
_ON_DEVICE |= {"allocated": "peak allocated", "reserved": "peak reserved"}
QUANTITIES = (
    Quantity("auroc", "AUROC", "{:.5f}".format, absolute=1e-4),
    Quantity("accuracy", "accuracy", "{:.5f}".format, absolute=1e-4),
    *(
        Quantity(f"device_{name}_bytes", f"{title} on the device", _megabytes, 0.01)
        for name, title in _ON_DEVICE.items()
    ),
    Quantity("host_peak_rss_bytes", "peak resident on the host", _megabytes, 0.05),
    Quantity("hit_rate", "hit rate", lambda rate: percent(rate, 2), absolute=1e-3),
    Quantity("fetched_bytes_per_step", "fetched per step", _megabytes, 0.01),
    Quantity("written_back_bytes_per_step", "written back per step", _megabytes, 0.01),
)
SPEED = "relative speed"


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

    def shows(self, loss: float) -> bool:
        """Whether a loss of this share of speed would have been beyond noise."""
        if self.ratio is None or self.ratio.high is None:
            return False
        return self.beyond_noise or self.ratio.high / self.ratio.value * (1 - loss) < 1

    @property
    def speeds(self) -> str:
        """Relative speeds in both runs, their ratio and its interval."""
        sides = (amount(row.ratio.value if row.ratio else None) for row in (self.before, self.after))
        return f"{SPEED} {' -> '.join(sides)}: x {relative(self.ratio)}"

    def changes(self) -> Iterator[tuple[int, str]]:
        """Quantities that changed by more than their tolerance, in words; those of the least number come first."""
        before, after = self.before, self.after
        if self.beyond_noise:
            yield 0 if self.slower else 1, self.speeds
        if before.status is not after.status:
            where = f" in phase {after.phase}" if after.phase else ""
            reason = f": {one_line(after.reason)}" if after.reason else ""
            yield 2, f"status {before.status} -> {after.status}{where}{reason}"
        old, new = before.verified, after.verified
        # how far apart within a tolerance may differ from one run to the next
        if old is not None and new is not None and old.split()[0] != new.split()[0]:
            yield 3, f"verified {old} -> {new}{'' if after.passed else ', verification lost'}"
        if before.measured_rounds and after.measured_rounds:  # without a measurement, the status says so
            for order, quantity in enumerate(QUANTITIES, start=4):
                values = _values(quantity.field, before, after)
                if quantity.differ(*values):
                    sides = (MISSING if value is None else quantity.show(value) for value in values)
                    yield order, f"{quantity.title} {' -> '.join(sides)}"
        if self.unjudged is Unjudged.IS_THE_BASELINE and before.steps_per_s and after.steps_per_s:
            shift = 100 * (after.steps_per_s / before.steps_per_s - 1)
            paces = f"{amount(before.steps_per_s)} -> {amount(after.steps_per_s)}"
            yield 99, f"it/s of the baseline {paces} ({shift:+.0f} %; no interval)"


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

    @property
    def unjudged(self) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by reason."""
        found = {reason: [pair.label for pair in self.pairs if pair.unjudged is reason] for reason in Unjudged}
        return {reason: labels for reason, labels in found.items() if labels}


def compare(before: RunRecords, after: RunRecords) -> Comparison:
    """Compare RUN_A with RUN_B, cell by cell.

    Raises:
        BadOption: they are the same directory, have no cell in common, or one is of a virtual device.
    """
    if mixes_virtual([*before.records, *after.records]):
        raise BadOption(
            "RUN_A and RUN_B: some records are of a virtual device and others were measured, so their numbers are not "
            "set side by side; give two runs of one kind"
        )
    if before.path.resolve() == after.path.resolve():
        raise BadOption(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    labels = _labels({**after.rows, **before.rows})
    both = [cell for cell in before.rows if cell in after.rows]
    if not both:
        raise BadOption(
            f"RUN_A and RUN_B have no cell in common, for example {labels[next(iter(before.rows))]} against "
            f"{labels[next(iter(after.rows))]}; run the same systems, workloads and options in both"
        )
    environments = [
        _environment(record for cell in both for record in run.rows[cell].records) for run in (before, after)
    ]
    shown = {
        name: [", ".join(environment.get(name, ["none"])) for environment in environments]
        for name in dict.fromkeys([*environments[0], *environments[1]])
    }
    return Comparison(
        before=before,
        after=after,
        pairs=tuple(_pair(labels[cell], before.rows[cell], after.rows[cell]) for cell in both),
        only_before={labels[cell]: row for cell, row in before.rows.items() if cell not in after.rows},
        only_after={labels[cell]: row for cell, row in after.rows.items() if cell not in before.rows},
        differences=tuple((name, old, new) for name, (old, new) in shown.items() if old != new),
    )


def _labels(rows: Mapping[CellKey, Row]) -> dict[CellKey, str]:
    """Short names of cells: system, workload, and what tells a cell from the others of its workload."""
    facts = {key: _facts(row.cell) for key, row in rows.items()}
    labels: dict[CellKey, str] = {}
    for key, row in rows.items():
        alike = [facts[other] for other, one in rows.items() if one.cell.workload == row.cell.workload]
        apart = [text for name, text in facts[key].items() if any(other[name] != text for other in alike)]
        labels[key] = ", ".join([f"{row.system} x {row.cell.workload}", *apart])
    return labels


def _facts(cell: Cell) -> dict[str, str]:
    """Fields that may tell a cell from another of its system and workload, in words."""
    facts = {"cache": cache(cell)}
    for name in Cell.model_fields:
        if name not in _NOT_IN_LABELS:
            value, called = getattr(cell, name), name.replace("_", " ")
            facts[name] = f"no {called}" if value is None else f"{called} {value}"
    return facts


def _pair(label: str, before: Row, after: Row) -> Pair:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.
    """
    rows, ratio = (before, after), None
    ours, theirs = ({(record.key, record.started_at) for record in row.records} for row in rows)
    machines = {(row.records[0].environment.machine, row.records[0].environment.threads) for row in rows}
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
        ratio = ratio_of(*(samples_of(log_speeds(row.records)) for row in (after, before)))
        elsewhere = Unjudged.ANOTHER_MACHINE if len(machines) > 1 else None
        unjudged = Unjudged.NO_INTERVAL if ratio.low is None else elsewhere
    return Pair(label=label, before=before, after=after, ratio=ratio, unjudged=unjudged)


def _values(field: str, before: Row, after: Row) -> tuple[float | None, float | None]:
    """A quantity in both runs; quality over the rounds that both measured, because rounds differ in seed."""
    if field not in ("auroc", "accuracy"):
        return before.line().get(field), after.line().get(field)
    old, new = before.quality(field), after.quality(field)
    shared = old.keys() & new.keys()
    return (fmean(old[one] for one in shared), fmean(new[one] for one in shared)) if shared else (None, None)


def _environment(records: Iterable[Record]) -> dict[str, dict[str, None]]:
    """Machine, code, threads, packages and how turns were taken: values by name, each once, in order of time."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.order):
        values = record.environment.model_dump(exclude={"machine", "packages", "system_code"}, exclude_none=True)
        values |= {f"code of {base_name(record.cell.system)}": record.environment.system_code}
        values |= record.environment.packages | {"turns taken": record.turns and record.turns.way}
        for name, value in values.items():
            if value is not None:
                found[name][f"{amount(value / 1e9)} GB" if name.endswith("_bytes") else str(value)] = None
    return found
