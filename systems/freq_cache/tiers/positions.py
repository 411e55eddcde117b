"""Which positions of a log of records may be written."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SPARE = 1 / 3
"""Share of the log that must be free before free positions are used again."""
MOST_POSITIONS = (1 << 31) - 1
"""A map has 31 bits for a position, and one number for none."""


class Positions:
    """The log's end and the positions before it that hold nothing.

    Writing at the end costs one long write. Writing to free positions costs a read and a write of a page for every
    page that has some, so the log first grows until a good share of it is free, and is then gone through from the
    start, filling all that is free on the way (Rosenblum and Ousterhout 1992 call it threading the log). Where numbers
    for positions run out, all that is free is used at once.
    """

    def __init__(self, *, end: int = 0, free: Ints | None = None) -> None:
        self.end = end
        self._ready = _NONE if free is None else free
        self._freed: list[Ints] = []
        self._retired: list[Ints] = []

    def offer(self, count: int) -> Ints:
        """Free positions for the first of `count` records, int64, ascending, `count` at most; the others go to the end.

        Nothing is taken before `take`.
        """
        full = self.end + count > MOST_POSITIONS
        if not full and self._ready.size + sum(part.size for part in self._freed) < SPARE * self.end:
            return _NONE
        if full or not self._ready.size:
            self._ready = np.sort(np.concatenate([self._ready, *self._freed]))
            self._freed = []
        return self._ready[:count]

    def take(self, *, offered: int, appended: int) -> None:
        """The first `offered` of the positions offered, and `appended` behind the end, now hold records."""
        self._ready = self._ready[offered:]
        self.end += appended

    def release(self, positions: Ints) -> None:
        """These are free at once: no committed map names them."""
        if positions.size:
            self._freed.append(positions)

    def retire(self, positions: Ints) -> None:
        """These are free after the next commit: the committed map names them."""
        if positions.size:
            self._retired.append(positions)

    def commit(self) -> None:
        """The retired positions are in no committed map any more."""
        self._freed += self._retired
        self._retired = []

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._ready, *self._freed, *self._retired))


_NONE: Ints = np.empty(0, dtype=np.int64)
