"""The least that any cache could have missed in the counted steps."""

from __future__ import annotations

from suite.records.model import Model


class Optimum(Model):
    """The least that any cache of as many slots could have missed and moved in the counted steps; simulated.

    Its horizon: it knows all ids of the cell, counts the misses of the last `steps` steps alone, and starts these with
    the best rows that a cache could hold by then: any that an earlier step used, and any of the most frequent rows.
    """

    slots: int
    bypasses: bool
    """A missing row may be used without taking a slot, as by the system itself."""
    first_step: int
    """The first step whose misses count; the cell's first step is 0."""
    steps: int
    unique_misses: int
    bytes_moved: int
    """Both ways."""
