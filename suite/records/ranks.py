"""What the ranks of a cell did, each of them: bytes, lookups, misses, and what they sent each other."""

from __future__ import annotations

from typing import Literal

from suite.records.model import Model


class RankShare(Model):
    """One rank. Counts are of the counted steps; None where a system does not know.

    A rank's lookups are those that it was sent, as the owner of their rows.
    """

    table_bytes: int
    """Of its rows and their optimizer state, in whatever tier they all are."""
    device_bytes: int
    """Of its rows and their state on the device (on a CPU, in the RAM that plays its part), by the system's account."""
    host_peak_rss_bytes: int
    device_reserved_bytes: int | None = None
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    ids_bytes: int | None
    """Ids and lengths of bags that it sent to other ranks; None: they were all sent ahead of these steps."""
    pooled_bytes: int
    """Pooled vectors that it sent to other ranks, and their gradients."""


class Ranks(Model):
    """All ranks of a cell."""

    backend: Literal["gloo", "nccl"]
    steps: int
    """Counted, over which bytes and lookups are sums."""
    steps_per_s: float
    """Of all training steps together, in the cell's own processes."""
    shares: tuple[RankShare, ...]
    """By rank."""
