"""Groups that differ in size alone: of the cache, or of the memory beside a drive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from suite.records.groups import Group

_SIZES = ("cache_ratio", "device_budget_bytes", "host_budget_bytes")


def sweeps(groups: Iterable[Group]) -> list[tuple[Group, ...]]:
    """Groups that differ in size alone together, the smallest first; in order of the first of each."""
    found: defaultdict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        key = group.key
        identity = group.cell.identity("system", "round", *_SIZES), on_drive(group)
        found[key.workload_order, key.device, key.data, key.machine, key.threads, identity].append(group)
    return [tuple(sorted(members, key=_size)) for members in found.values()]


def on_drive(group: Group) -> bool:
    """Whether a group is of the contest of rows on a drive, which has tables of its own."""
    return group.cell.host_budget_bytes is not None


def _size(group: Group) -> tuple[int, float]:
    cell = group.cell
    return cell.host_budget_bytes or cell.device_budget_bytes or 0, cell.cache_ratio or 0.0
