"""Where the rows of announced batches are noted until they are planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.planner.loops import FIELDS, MOST_POSITIONS

Segment = tuple[int, int]
"""The first position and the one behind the last."""


@dataclass
class _Arena:
    chunks: list[Segment] = field(default_factory=list)
    cursor: int = 0

    @property
    def size(self) -> int:
        return sum(stop - start for start, stop in self.chunks)


class Ring:
    """Stretches of one array, each used over and over. It grows if it must; positions stay what they are.

    Parts of a batch that are entered on threads of their own take their room from different stretches, so that none has
    to know how many rows the others find.

    Attributes:
        entries: Every position's fields, int32 `[positions * FIELDS]`; another array once it has grown.
    """

    def __init__(self, positions: int) -> None:
        self.entries: NDArray[np.int32] = np.empty(FIELDS * positions, np.int32)
        self._arenas = [_Arena([(0, positions)])]

    def room(self, wanted: Sequence[int], live: Iterable[Segment]) -> list[int]:
        """Where so many positions follow each other that are in none of the live segments, for each part of a batch.

        Raises:
            ValueError: there are not that many positions.
        """
        taken = list(live)
        self._arenas += [_Arena() for _ in range(len(wanted) - len(self._arenas))]
        return [self._room(arena, count, taken) for arena, count in zip(self._arenas, wanted, strict=False)]

    def take(self, segments: Sequence[Segment]) -> None:
        """Go on behind what became of the parts of a batch."""
        for arena, (_, end) in zip(self._arenas, segments, strict=False):
            arena.cursor = end

    def _room(self, arena: _Arena, wanted: int, live: Sequence[Segment]) -> int:
        for begin in (arena.cursor, *(start for start, _ in arena.chunks)):
            end = begin + wanted
            inside = any(start <= begin and end <= stop for start, stop in arena.chunks)
            if inside and all(end <= taken or begin >= behind for taken, behind in live):
                return begin
        size = self.entries.size // FIELDS
        grown = size + max(arena.size, 2 * wanted)
        if grown > MOST_POSITIONS:
            raise ValueError("too many ids are announced at once: announce fewer batches ahead")
        entries = np.empty(FIELDS * grown, np.int32)
        entries[: self.entries.size] = self.entries
        self.entries = entries
        follows = bool(arena.chunks) and arena.chunks[-1][1] == size
        arena.chunks.append((arena.chunks.pop()[0] if follows else size, grown))
        return size
