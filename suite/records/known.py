"""What systems were told of the ids before they trained."""

from __future__ import annotations

from suite.records.model import Model


class FrequencySource(Model):
    """Where the frequencies came from that a system asked for."""

    prefix: float
    """Share of the training split, from its beginning."""
    samples: int
    """Samples that they are counted over, or expected in."""
    sketch_bytes: int | None = None
    """None: exact."""
    error_accesses: int = 0
    """Most by which a sketched count may be too low, over all tables; none is too high."""
    error_share: float = 0.0
    """The same relative to all accesses of the table, the largest over all tables."""
