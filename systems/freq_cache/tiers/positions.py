"""Free positions in a log of records."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SPARE = 1 / 3
"""Share of the log that must be free before free positions are reused."""
MOST_POSITIONS = (1 << 31) - 1
"""Maximum positions: a map has 31 bits for a position, and one code for none."""


class Positions:
    """The log's end and the free positions before it.

    Writing at the end costs one long write. Writing to free positions costs a read and a write of every page that has
    some, so the log first grows until the share `SPARE` of it is free; free positions are then filled in order from
    the start (Rosenblum and Ousterhout 1992 call it threading the log). At `MOST_POSITIONS` all free positions are used
    at once.
    """

    def __init__(self, *, end: int = 0, free: Ints | None = None) -> None:
        self.end = end
        self._ready = _NONE if free is None else free
        self._freed: list[Ints] = []
        self._retired: list[Ints] = []

    def offer(self, count: int) -> Ints:
        """Free positions for the first of `count` records, int64, ascending, `count` at most; the others go to the end.

        The caller confirms their use with `take`.
        """
        full = self.end + count > MOST_POSITIONS
        if not full and self._ready.size + sum(part.size for part in self._freed) < SPARE * self.end:
            return _NONE
        if full or not self._ready.size:
            self._ready = np.sort(np.concatenate([self._ready, *self._freed]))
            self._freed = []
        return self._ready[:count]

    def take(self, *, offered: int, appended: int) -> None:
        """Mark the first `offered` of the offered positions, and `appended` positions at the end, as used."""
        self._ready = self._ready[offered:]
        self.end += appended

    def release(self, positions: Ints) -> None:
        """Free positions at once: no committed map contains them."""
        if positions.size:
            self._freed.append(positions)

    def retire(self, positions: Ints) -> None:
        """Free positions after the next commit: the committed map contains them."""
        if positions.size:
            self._retired.append(positions)

    def commit(self) -> None:
        """Free the retired positions, which no committed map contains any more."""
        self._freed += self._retired
        self._retired = []

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._ready, *self._freed, *self._retired))


_NONE: Ints = np.empty(0, dtype=np.int64)
