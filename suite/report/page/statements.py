"""What the page says in sentences: where its numbers come from, what ran, what did not, and what nobody measured."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite.records.groups import Group, base_name
from suite.records.record import Cell
from suite.records.scales import SCALES, SMALL
from suite.records.status import Status
from suite.report.source import Source
from suite.report.standings import leaderboards
from suite.tables.disk_blocks import disk_verdict
from suite.tables.rows import failure
from suite.tables.settings import cache, on_drive, sweeps, told_apart
from suite.tables.verdict import verdict
from systems.registry import DISK, SYSTEMS
from workloads.schema import SCHEMAS


class Names:
    """The words that the page filters by.

    Args:
        groups: All that the page shows.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        settings = {(group.cell.workload, _setting(group.cell), group.cell.setting) for group in groups}
        machines = {(device_words(group), group.key.machine, group.key.threads) for group in groups}
        self._settings = Counter((workload, words) for workload, words, _ in settings)
        self._machines = Counter(words for words, _, _ in machines)

    def setting(self, cell: Cell) -> str:
        """Data, scale and cache size; with the setting's digest where two settings of a dataset read alike."""
        words = _setting(cell)
        return words if self._settings[cell.workload, words] < 2 else f"{words}, setting {cell.setting}"

    def device(self, group: Group) -> str:
        """The device; with machine and threads where two machines read alike."""
        words, key = device_words(group), group.key
        return words if self._machines[words] < 2 else f"{words}, machine {key.machine}, {key.threads} threads"


def device_words(group: Group) -> str:
    """What lookups were computed on."""
    return f"CPU: {group.key.device}" if group.on_cpu else group.key.device


def _setting(cell: Cell) -> str:
    parts = [f"{cell.data}, {cell.scale}"]
    if cell.frequency_prefix != 1 or cell.frequency_sketch_bytes is not None:
        parts.append(f"frequencies from the first {100 * cell.frequency_prefix:g} %")
    return ", ".join([*parts, cache(cell)])


PROJECT = "embedding-offload-bench"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A system of a comparison that did not end ok: in which rounds, how and why."""

    system: str
    where: str
    rounds: tuple[int, ...]
    how: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from a comparison; `others` has the same of the other cache sizes."""

    heading: str
    sentences: tuple[str, ...]
    others: tuple[Verdict, ...] = ()


def verdicts(groups: tuple[Group, ...]) -> tuple[Verdict, ...]:
    """A verdict per sweep of cache sizes, in order of the groups; rows on a drive have one for all budgets."""
    names = Names(groups)
    one_each = {sweep[0].key: sweep for sweep in sweeps(groups) if on_drive(sweep[0])}
    told = [group for group in groups if not on_drive(group) or group.key in one_each]
    facts = {
        group.key: (
            f"{group.cell.data} data",
            group.cell.optimizer,
            "rows on a drive" if on_drive(group) else cache(group.cell),
            names.device(group),
        )
        for group in told
    }
    several = [len(set(column)) > 1 for column in zip(*facts.values(), strict=True)]
    heads = [", ".join([group.title, *itertools.compress(facts[group.key], several)]) for group in told]
    apart = told_apart(heads, [f"setting {group.key.setting}" for group in told])
    made = {
        group.key: Verdict(
            heading=head,
            sentences=disk_verdict(one_each[group.key]) if group.key in one_each else verdict(group),
        )
        for group, head in zip(told, apart, strict=True)
    }
    found = []
    for sweep in sweeps(groups):
        if sweep[0].key in one_each:
            found.append(made[sweep[0].key])
            continue
        scale = SCALES.get(sweep[0].cell.scale)
        first = next((one for one in sweep if scale and one.cell.cache_ratio == scale.cache_ratio), sweep[-1])
        others = tuple(made[group.key] for group in sweep if group is not first)
        found.append(replace(made[first.key], others=others))
    return tuple(found)


def failures(groups: tuple[Group, ...]) -> tuple[Failure, ...]:
    """Every cell that has no `ok`, rounds that ended alike together."""
    names = Names(groups)
    rounds: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for group in groups:
        where = f"{group.title}, {names.setting(group.cell)}, {group.cell.optimizer}, {names.device(group)}"
        for runs in group.rounds_by_system.values():
            for run in runs:
                if run.status is not Status.OK:
                    rounds[run.cell.system, where, failure(run)].append(run.cell.round + 1)
    return tuple(
        Failure(system=system, where=where, rounds=tuple(numbers), how=how)
        for (system, where, how), numbers in rounds.items()
    )


def problems(source: Source, root: Path) -> tuple[tuple[str, str], ...]:
    """Files that were left out, relative to the page, and why."""
    return tuple(
        sorted((Path(os.path.relpath(problem.path, root)).as_posix(), problem.reason) for problem in source.problems)
    )


def newest(source: Source) -> str:
    """Day of the newest record."""
    return max(source.records, key=lambda record: record.order).started_at[:10]


def device_statement(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """What the devices allow to be claimed; nothing where everything ran on CUDA devices, or beside a drive."""
    on_cpu = [group for group in groups if group.on_cpu and not on_drive(group)]
    if not on_cpu:
        return ()
    number = f"{len(on_cpu)} of {len(groups)} comparisons {'was' if len(on_cpu) == 1 else 'were'}"
    who = "Everything on this page was" if len(on_cpu) == len(groups) else number
    said = [
        f"{who} measured on a CPU. Offload throughput is not claimed from that: fbgemm and torchrec have no UVM "
        "there, so their tables are host-resident and stand outside any offload ranking.",
        "Numerics, hit rates, bytes moved and bytes by tier hold on any device.",
    ]
    if leaderboards(on_cpu):
        said.append("What is ranked by throughput on a CPU keeps its slots in RAM and offloads to a file on disk.")
    return tuple(said)


def not_measured(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """What a reader may look for and not find, from what the records have."""
    cells = [record.cell for group in groups for record in group.records]
    said = ["Training on more than one device: a cell uses one."]
    if all(cell.device == "cpu" for cell in cells):
        said.append("Offload throughput over a device link: no record is of a CUDA device.")
    elif all(cell.device == "cuda" for cell in cells):
        said.append("Training on a CPU: no record is of one.")
    if all(cell.data == "synthetic" for cell in cells):
        said.append("Real data: all streams are synthetic, and their labels are planted.")
    if all(cell.max_rows is not None for cell in cells):
        largest = max(cell.max_rows for cell in cells if cell.max_rows is not None)
        said.append(f"Tables of published size: they are capped, to about {largest:,} rows in all at most.")
    said.append("Whole epochs: an epoch's time is its samples divided by throughput.")
    here = {group.cell.workload.partition("@")[0] for group in groups}
    said += _missing("Datasets", [schema.title for name, schema in SCHEMAS.items() if name not in here])
    systems = {base_name(cell.system) for cell in cells}
    offered = {on_drive(group): DISK if on_drive(group) else SYSTEMS for group in groups}.values()
    said += _missing("Systems", [name for names in offered for name in names if name not in systems])
    optimizers = {cell.optimizer for cell in cells}
    said += _missing("Optimizers", [name for name in SMALL.lr if name not in optimizers])
    return tuple(said)


def citation(source: Source) -> str:
    """The line to cite, from the records alone."""
    commits = dict.fromkeys(
        record.environment.commit[:10] + ("+" if record.environment.dirty else "")
        for record in source.records
        if record.environment.commit
    )
    names = Names(source.groups)
    devices = dict.fromkeys(names.device(group) for group in source.groups)
    code = f"commit {', '.join(commits)}" if commits else f"code {source.records[0].environment.code}"
    return (
        f"{PROJECT}: embedding offload systems compared. Results of {newest(source)}, {code}, "
        f"{len(source.records)} records, measured on {'; '.join(devices)}."
    )


def _missing(what: str, names: list[str]) -> list[str]:
    return [f"{what} without a record: {'; '.join(names)}."] if names else []
