"""Which positions of the ring the uses of a coming batch take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from systems.freq_cache.planner.index import MOST_POSITIONS

Segment = tuple[int, int]
"""The first position and the one behind the last."""


@dataclass
class _Arena:
    chunks: list[Segment] = field(default_factory=list)
    cursor: int = 0


class Ring:
    """Hands out positions, and hands them out again once their batch is planned. It grows if it must.

    The parts of a batch are announced by several threads at the same time. Each part takes its positions from stretches
    of its own, so that no thread has to know how many distinct rows the others find.

    Attributes:
        positions: How many there are by now. A position keeps its number when there are more.
    """

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._arenas = [_Arena([(0, positions)])]

    def room(self, wanted: Sequence[int], live: Iterable[Segment]) -> list[int]:
        """The first of as many consecutive positions as each part of a batch wants, none of them in a live segment.

        Raises:
            ValueError: there are not that many positions.
        """
        taken = list(live)
        self._arenas += [_Arena() for _ in range(len(wanted) - len(self._arenas))]
        return [self._room(arena, count, taken) for arena, count in zip(self._arenas, wanted, strict=False)]

    def advance(self, segments: Sequence[Segment]) -> None:
        """Look for the next room behind the segments that the parts of a batch took in the end."""
        for arena, (_, end) in zip(self._arenas, segments, strict=False):
            arena.cursor = end

    def _room(self, arena: _Arena, wanted: int, live: Sequence[Segment]) -> int:
        for begin in (arena.cursor, *(start for start, _ in arena.chunks)):
            end = begin + wanted
            inside = any(start <= begin and end <= stop for start, stop in arena.chunks)
            if inside and all(end <= taken or begin >= behind for taken, behind in live):
                return begin
        have = sum(stop - start for start, stop in arena.chunks)
        first, grown = self.positions, self.positions + max(have, 2 * wanted)
        if grown > MOST_POSITIONS:
            raise ValueError("too many ids are announced at once: announce fewer batches ahead")
        self.positions = grown
        follows = bool(arena.chunks) and arena.chunks[-1][1] == first
        arena.chunks.append((arena.chunks.pop()[0] if follows else first, grown))
        return first
