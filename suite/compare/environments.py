"""Where two runs were measured: everything that differs, and what that means for their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from suite.compare.runs import Matched, Place, Run, Side, place_title
from suite.records.environment import Environment
from suite.records.groups import Group, base_name
from suite.records.record import Record
from suite.tables.quantities import amount

NONE = "none"
_MACHINE = {
    "cpu": "CPU",
    "cores": "cores",
    "memory_bytes": "memory",
    "gpu": "GPU",
    "gpu_memory_bytes": "GPU memory",
    "driver": "driver",
    "cuda": "CUDA",
    "os": "OS",
    "python": "Python",
    "threads": "threads",
    "code": "code",
}
"""Fields of `Environment`, and what people call them."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact of the environment that differs; several values where a run mixes them, the latest last.

    Attributes:
        where: The machine, where several are compared; else empty.
        name: What differs.
        before, after: As printed.
    """

    where: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


def differences(before: Run, after: Run, matched: Matched) -> list[Difference]:
    """What differs between the runs, machine by machine."""
    found = []
    for place, counterpart in matched.places:
        groups = [_groups_at(before, place), _groups_at(after, counterpart)]
        where = place_title(groups[0][0]) if len(matched.places) > 1 else ""
        sides = [_facts(record for group in side for record in group.records) for side in groups]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            old, new = (", ".join(side.get(name, [NONE])) for side in sides)
            if old != new:
                found.append(Difference(where=where, name=name, before=old, after=new))
    return found


def warnings(before: Run, after: Run, matched: Matched) -> list[str]:
    """What a reader has to know before the numbers."""
    found = []
    if len(matched.places) > 1:
        compared = [place_title(_groups_at(before, place)[0]) for place, _ in matched.places]
        found.append(
            f"Both runs hold several machines or numbers of threads, compared one by one: {'; '.join(compared)}."
        )
    for ours, theirs in matched.places:
        if ours.machine != theirs.machine:
            found.append("The runs come from two machines: their speed ratios are of machines, not of code.")
        if ours.threads != theirs.threads:
            found.append("The runs had different numbers of threads: speeds on the host change with these alone.")
    for run, partner in ((before, 0), (after, 1)):
        shared = {pair[partner] for pair in matched.places}
        found += [
            f"{run.name} alone was measured on {title}: nothing to compare there."
            for title in dict.fromkeys(place_title(group) for group in run.groups if Place.of(group) not in shared)
        ]
        sides = [pair[partner] for pair in matched.pairs]
        mixed = sum(_mixes_versions(side) for side in sides)
        if mixed:
            found.append(
                f"{run.name} has {mixed} cell{'s' if mixed > 1 else ''} whose rounds ran with different code, packages "
                "or drivers: their spread is not noise alone; measure them again with --fresh."
            )
        disturbed = [record for side in sides for record in side.records if record.disturbed]
        if disturbed:
            found.append(
                f"{run.name} has {len(disturbed)} record{'s' if len(disturbed) > 1 else ''} of a disturbed machine, "
                f"e.g. {disturbed[0].cell.label}: {'; '.join(disturbed[0].disturbed)}; measure them again with --fresh."
            )
    return list(dict.fromkeys(found))


def _groups_at(run: Run, place: Place) -> list[Group]:
    return [group for group in run.groups if Place.of(group) == place]


def _facts(records: Iterable[Record]) -> dict[str, list[str]]:
    """Values by name, each once, in order of time."""
    found: dict[str, dict[str, None]] = {}
    for record in sorted(records, key=lambda record: record.order):
        packages = sorted(record.environment.packages.items())
        for name, value in (*_of_machine(record.environment), *_of_run(record), *packages):
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _of_machine(environment: Environment) -> Iterator[tuple[str, str]]:
    for field, name in _MACHINE.items():
        value = getattr(environment, field)
        if field.endswith("_bytes"):
            value = value and f"{amount(value / 1e9)} GB"
        yield name, NONE if value is None else str(value)
    yield "commit", environment.commit[:10] if environment.commit else "not known"
    yield "changed since the commit", {True: "yes", False: "no", None: "not known"}[environment.dirty]


def _of_run(record: Record) -> Iterator[tuple[str, str]]:
    """How turns were taken and batches made, and the code of a system that is not one of the suite's."""
    if record.environment.system_code is not None:
        yield f"code of {base_name(record.cell.system)}", record.environment.system_code
    if record.measurement is None:
        return
    timing = record.measurement.timing
    if record.turns is not None:
        yield "turns taken", record.turns.way
    yield "batches made", timing.batches_made
    yield "processes that made batches", str(timing.producers)
    yield "training threads", str(timing.training_threads)


def _mixes_versions(side: Side) -> bool:
    environments = [record.environment for record in side.records]
    return len({(e.code, e.system_code, e.python, e.driver, *sorted(e.packages.items())) for e in environments}) > 1
