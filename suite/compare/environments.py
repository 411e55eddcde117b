"""Where two runs were measured: everything that differs, and what that means for their numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from suite.compare.runs import Pair, Run
from suite.records.groups import base_name
from suite.records.record import Record
from suite.tables.quantities import amount


class Difference(NamedTuple):
    """A fact of the environment that differs, as printed; several values where a run mixes them, the latest last."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


def differences(pairs: Sequence[Pair]) -> list[Difference]:
    """What differs between where cells were measured in one run and in the other."""
    before, after = (_facts(record for row in rows for record in row.records) for rows in zip(*pairs, strict=True))
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = (", ".join(side.get(name, ["none"])) for side in (before, after))
        if old != new:
            found.append(Difference(name, old, new))
    return found


def warnings(before: Run, after: Run, pairs: Sequence[Pair]) -> list[str]:
    """What a reader has to know before the numbers."""
    found = []
    if any(pair.another_machine for pair in pairs):
        found.append(
            "The runs are of two machines, or have other threads: their speed ratios are of machines, not of code."
        )
    for run, rows in zip((before, after), zip(*pairs, strict=True), strict=True):
        disturbed = [record for row in rows for record in row.records if record.disturbed]
        if disturbed:
            found.append(
                f"{run.name} has {len(disturbed)} record{'s' if len(disturbed) > 1 else ''} of a disturbed machine, "
                f"e.g. {disturbed[0].cell.label}: {'; '.join(disturbed[0].disturbed)}; measure them again with --fresh."
            )
    return found


def _facts(records: Iterable[Record]) -> dict[str, list[str]]:
    """Values by name, each once, in order of time."""
    found: dict[str, dict[str, None]] = {}
    for record in sorted(records, key=lambda record: record.order):
        for name, value in (*_of_environment(record), *sorted(record.environment.packages.items())):
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _of_environment(record: Record) -> Iterator[tuple[str, str]]:
    """What there is to know of machine, code and threads, and how turns were taken."""
    for field, value in record.environment:
        if value is None or field in ("machine", "packages"):
            continue
        if field == "system_code":
            yield f"code of {base_name(record.cell.system)}", value
        elif field.endswith("_bytes"):
            yield field.removesuffix("_bytes").replace("_", " "), f"{amount(value / 1e9)} GB"
        else:
            yield field, str(value)
    if record.turns is not None:
        yield "turns taken", record.turns.way
