"""The equal-bytes leaderboard: which system is fastest within so much device memory.

A cache ratio gives systems unlike bytes (indexes, staging, state); device memory is what a user has. So cells of one
stream, model and machine meet here whatever ratio or budget they ran with, and each system enters a budget with the
fastest of its cells that fits.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from suite.records.groups import Group
from suite.records.record import Measurement, Record
from suite.tables.statistics import Estimate, paired_ratio, places, samples_per_s_by_round, takes_part, unpaired_ratio


class Basis(StrEnum):
    """What device bytes were read off."""

    DRIVER = "the driver's figure, CUDA context included"
    TORCH = "torch's peak reserved, because the driver was not asked"
    ANATOMY = "the system's own account of its device tier, which is RAM here"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A system at one cache size.

    Attributes:
        group: Where it was measured.
        records: Its rounds, all of them ok, verified and offloading (or the baseline, on CUDA).
        device_bytes: The largest over rounds.
        basis: Where that comes from.
        speeds: Samples per second by round.
    """

    system: str
    group: Group
    records: tuple[Record, ...]
    device_bytes: int
    basis: Basis
    speeds: dict[int, float]

    @property
    def samples_per_s(self) -> float:
        """Geometric mean over rounds, as the ratios are."""
        return statistics.geometric_mean(self.speeds.values())

    def over(self, other: Contender) -> Estimate:
        """Speed relative to another: paired by round where the two ran interleaved, as within one group they do."""
        if self.group.key == other.group.key:
            paired = paired_ratio(self.speeds, other.speeds)
            if paired is not None:
                return paired
        return unpaired_ratio(self.speeds, other.speeds)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Cells that differ in system, cache size and round alone.

    Attributes:
        groups: Those that differ in cache size alone.
        contenders: In order of device bytes, then of name.
    """

    groups: tuple[Group, ...]
    contenders: tuple[Contender, ...]

    @property
    def group(self) -> Group:
        """Any of its groups, for its dataset, device and setting."""
        return self.groups[0]

    @property
    def budgets(self) -> tuple[int, ...]:
        """Powers of two, in bytes, from the first that lets a contender in to the first that lets all in."""
        sizes = [contender.device_bytes for contender in self.contenders]
        first, last = (max(0, math.ceil(math.log2(max(1, size)))) for size in (min(sizes), max(sizes)))
        return tuple(2**power for power in range(first, last + 1))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A system's place within a budget.

    Attributes:
        budget_bytes: The device memory that all who are placed fit into.
        place: From 1; a system too close to call with the first of a place shares that place.
        tied: The place is shared.
        to_first: Speed relative to the first of the list; None for the first itself.
    """

    budget_bytes: int
    place: int
    tied: bool
    contender: Contender
    to_first: Estimate | None


def contests(groups: Iterable[Group]) -> tuple[Contest, ...]:
    """The contests of a report, in order of its groups; groups in which nobody takes part give none."""
    made = []
    for members in families(groups):
        contenders = [contender for group in members for contender in _contenders(group)]
        if contenders:
            contenders.sort(key=lambda contender: (contender.device_bytes, contender.system))
            made.append(Contest(groups=members, contenders=tuple(contenders)))
    return tuple(made)


def standings(contest: Contest, budget_bytes: int) -> tuple[Place, ...]:
    """Who is fastest within so many device bytes, each system with its fastest cell that fits."""
    best: dict[str, Contender] = {}
    for contender in contest.contenders:
        if contender.device_bytes > budget_bytes:
            continue
        known = best.get(contender.system)
        if known is None or contender.samples_per_s > known.samples_per_s:
            best[contender.system] = contender
    order = sorted(best.values(), key=lambda contender: (-contender.samples_per_s, contender.system))
    shared = places(order, lambda first, other: first.over(other))
    return tuple(
        Place(
            budget_bytes=budget_bytes,
            place=place,
            tied=shared.count(place) > 1,
            contender=contender,
            to_first=None if contender is order[0] else contender.over(order[0]),
        )
        for place, contender in zip(shared, order, strict=True)
    )


def device_bytes(measurement: Measurement, *, on_cpu: bool) -> tuple[int, Basis] | None:
    """Device memory that a cell took, and where the figure comes from; None where nothing is on the device."""
    memory = measurement.memory
    if not on_cpu and memory.device_used_bytes is not None:
        return memory.device_used_bytes, Basis.DRIVER
    if not on_cpu and memory.device_reserved_bytes is not None:
        return memory.device_reserved_bytes, Basis.TORCH
    own = sum(size for key, size in memory.anatomy_bytes.items() if key.startswith("device/"))
    return (own, Basis.ANATOMY) if own else None


def families(groups: Iterable[Group]) -> tuple[tuple[Group, ...], ...]:
    """Groups that differ in cache size alone together, in order of the first of each."""
    found: defaultdict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        key = group.key
        identity = group.cell.identity("system", "round", "cache_ratio", "device_budget_bytes")
        found[key.workload_order, key.device, key.data, key.machine, key.threads, identity].append(group)
    return tuple(map(tuple, found.values()))


def _contenders(group: Group) -> Iterable[Contender]:
    for system, runs in group.rounds_by_system.items():
        if not all(takes_part(run) for run in runs):
            continue
        sizes = [device_bytes(run.measurement, on_cpu=group.on_cpu) for run in runs if run.measurement is not None]
        known = [size for size in sizes if size is not None]
        if len(known) == len(runs):
            size, basis = max(known)
            yield Contender(
                system=system,
                group=group,
                records=runs,
                device_bytes=size,
                basis=basis,
                speeds=samples_per_s_by_round(runs),
            )
