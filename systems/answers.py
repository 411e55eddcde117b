"""Types that systems report in: support, placement of rows, bytes by tier and purpose, traffic counters."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tables read what systems reported without importing torch
    from torch import Tensor


class Verdict(enum.StrEnum):
    """Whether a system can run a setting; decided before anything is built."""

    YES = "yes"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Support:
    """A verdict with its reason: what is missing, and the remedy (what to install, the smallest budget that works)."""

    verdict: Verdict = Verdict.YES
    reason: str = ""


class Tier(enum.StrEnum):
    """Memory tier of bytes. On a CPU `device` is RAM that stands in for device memory."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class MemoryUse(enum.StrEnum):
    """Use of bytes."""

    ROWS = "rows"
    STATE = "state"
    INDEX = "index"
    STAGING = "staging"


MemoryBreakdown = dict[tuple[Tier, MemoryUse], int]
"""Bytes by tier and purpose."""


def total_of(parts: Iterable[Mapping[tuple[Tier, MemoryUse], int]]) -> MemoryBreakdown:
    """Sum of the bytes of several parts, by tier and purpose."""
    total: Counter[tuple[Tier, MemoryUse]] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Location of a system's rows, read from its live objects.

    Attributes:
        label: A short text for the table, e.g. `device`, `uvm (host-mapped)`, `host-resident`.
        offloads: Rows live in a slower tier than the one that computes. Only such systems enter an offload ranking,
            beside the all-on-device baseline.
        same_kernel_as: The registered system that runs the same kernel on the same kind of memory on this machine, so
            that timing this one would time that one again. None: there is no such system.
    """

    label: str
    offloads: bool
    same_kernel_as: str | None = None


def knowledge(*sources: str, look_ahead: int = 0) -> str:
    """Prior knowledge of the id stream, in words: `the past, next 2 batches`, or `nothing`."""
    coming = ["next batch" if look_ahead == 1 else f"next {look_ahead} batches"] if look_ahead else []
    return ", ".join([*sources, *coming]) or "nothing"


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Traffic since the last reset. None: not known for this system on this device.

    Attributes:
        steps: Batches counted.
        lookups: Ids looked up.
        unique_ids: Distinct rows per batch, summed over batches.
        unique_misses: Those of `unique_ids` absent from the device when the batch arrived, before anything was fetched.
        lookup_misses: Ids whose row was absent when the batch arrived, duplicates counted.
        rows_fetched, rows_written_back: Rows moved to and from the device.
        bytes_fetched, bytes_written_back: The same in bytes, optimizer state included.
        rows_from_ram: Those of `rows_fetched` that a level of RAM above a drive gave.
        rows_from_drive: Rows asked of a file on a drive; None: all of `rows_fetched`, where rows are on one.
        overflow_batches: Batches with more distinct rows than the cache has slots.
        late_batches: Batches with rows that were read while others moved: staging was full, or a write-back pending.
        planning_wait_s, fetch_wait_s, write_back_wait_s: Seconds in which the training thread waited for plans, for
            rows to be read and for rows to be written back, or did this work itself.
        per_table: Unique ids and unique misses by table name, where known.
    """

    steps: int
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookup_misses: int | None = None
    rows_fetched: int | None = None
    rows_written_back: int | None = None
    bytes_fetched: int | None = None
    bytes_written_back: int | None = None
    rows_from_ram: int | None = None
    rows_from_drive: int | None = None
    overflow_batches: int = 0
    late_batches: int | None = None
    planning_wait_s: float | None = None
    fetch_wait_s: float | None = None
    write_back_wait_s: float | None = None
    per_table: Mapping[str, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of one table: weights fp32 `[n, dim]` and optimizer state by name, `[n]` or `[n, dim]`, on the host."""

    weights: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)


class WorkingSetTooLarge(ValueError):
    """One batch needs more of the device than the budget allows; the message names the smallest budget that works."""
