"""Index of the rows of a file tier that have a place in RAM. Nothing here moves a record: see `file`.

The tier keeps an int32 code for every row, which says where its record is in the file. The code of a row with a place
in RAM is `IN_RAM` plus the place; the index then has the file's code.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from systems.freq_cache.cache.policy import LEVELS, checked
from systems.freq_cache.compiled import compiled

Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint16]
Keys = Callable[[Int32s], Int32s]
"""The keys of rows, int32 `[n]`, from 0 to `LEVELS` - 1."""

IN_RAM = 1 << 30
"""Codes from this one on are of rows in RAM."""
_VACANT, _NOBODY = -1, -1
_FREE = LEVELS
"""The list of vacant places, behind those of the keys."""


class _Places(NamedTuple):
    """The arrays that the loops work on, by place but for `codes`.

    A place is in the list of its key or in that of vacant ones, in the order of joining. It is in none while a batch
    takes its row, or a row is about to enter it. `after` and `before` are its neighbours, or itself; behind the places
    they have an element per list, which stands before its first place and behind its last one.

    Attributes:
        codes: Of the tier, by row.
        rows: Which row has the place, or `_VACANT`.
        file_codes: The code of the row's record in the file.
        taken_by: The batch that takes the row back and is not moved yet, or `_NOBODY`.
        keys: Of the rows.
        dirty: Whether the record is newer than the file's.
    """

    codes: Int32s
    rows: Int32s
    file_codes: Int32s
    taken_by: Int32s
    keys: npt.NDArray[np.int16]
    dirty: npt.NDArray[np.bool_]
    after: Int32s
    before: Int32s


class RamIndex:
    """Index of the rows that have places in RAM. Its callers see to it that one thread at a time is in its methods.

    `codes`: of all rows, int32 `[rows]`, none of a row in RAM; the index changes those of rows with a place. `keys`: of
    rows when they enter; None: all are equal.
    """

    BYTES = 23
    """Host bytes per place."""

    def __init__(self, places: int, codes: Int32s, *, keys: Keys | None = None) -> None:
        self.places = places
        self._keys = keys
        self._taken: deque[tuple[int, Int32s]] = deque()
        alone = np.arange(places + LEVELS + 1 if places else 0, dtype=np.int32)
        self._of = _Places(
            codes=codes,
            rows=np.full(places, _VACANT, np.int32),
            file_codes=np.zeros(places, np.int32),
            taken_by=np.full(places, _NOBODY, np.int32),
            keys=np.zeros(places, np.int16),
            dirty=np.zeros(places, np.bool_),
            after=alone,
            before=alone.copy(),
        )
        self.give_back(alone[:places].copy())

    @property
    def nbytes(self) -> int:
        """Host bytes, without the codes."""
        return sum(array.nbytes for array in self._of[1:])

    def file_codes(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same codes, those of rows in RAM replaced by the codes of their records in the file."""
        held = codes >= IN_RAM
        found = np.where(held, 0, codes)
        found[held] = self._of.file_codes[codes[held] - IN_RAM]
        return found

    def choose(self, count: int, *, vacant: bool = False) -> Int32s:
        """Places for `count` rows, only vacant ones or also those of rows with the lowest keys. See `give_back`.

        They are fewer if there are no more, or if batches that are not moved yet take all others.
        """
        chosen = np.empty(min(count, self.places), np.int32)
        return chosen[: _choose(chosen, 0 if vacant else LEVELS, self._of)]

    def give_back(self, places: Int32s) -> None:
        """Undo `choose`."""
        _give_back(places, self._of)

    def dirty(self, places: Int32s | None = None) -> tuple[Int32s, Int32s]:
        """Those of some places, or of all, whose records are newer than the file's, and the rows that have them."""
        found = np.flatnonzero(self._of.dirty).astype(np.int32) if places is None else places[self._of.dirty[places]]
        return found, self._of.rows[found]

    def enter(self, rows: Int32s, places: Int32s, *, dirty: bool) -> None:
        """Give rows places, which are vacant."""
        keys = np.zeros(rows.size, np.int32) if self._keys is None else self._keys(rows)
        checked(f"keys_of_evicted() of {rows.size} rows", keys, least=rows.size, most=rows.size, below=LEVELS)
        _enter(rows, places, keys, dirty, self._of)

    def logged(self, rows: Ints | Int32s, codes: Ints, sums: Sums, new_sums: Sums) -> None:
        """Note where rows were written in the file, and their checksums. Those with a place keep it.

        A compiled loop is not interrupted: all rows get both, or none gets any.
        """
        _logged(rows, codes, sums, new_sums, self._of)

    def take(self, places: Int32s, batch: int) -> None:
        """Note that a batch takes rows back. Their places keep the records until `moved`."""
        self._taken.append((batch, places))
        _take(places, batch, self._of)

    def moved(self, batch: int) -> None:
        """Free the places of rows that batches up to this one took, unless they came back meanwhile."""
        while self._taken and self._taken[0][0] <= batch:
            taken, places = self._taken[0]
            self.vacate(places[self._of.taken_by[places] == taken])
            self._taken.popleft()

    def vacate(self, places: Int32s) -> None:
        """Take their places from rows: they may be chosen, and what is newer than the file is lost."""
        _vacate(places, self._of)

    def committed(self) -> None:
        """Note that the file's positions are those of the last commit."""
        np.abs(self._of.file_codes, out=self._of.file_codes)


@compiled
def _unlink(place, of):
    of.after[of.before[place]], of.before[of.after[place]] = of.after[place], of.before[place]
    of.after[place] = of.before[place] = place


@compiled
def _append(place, number, of):
    """Put a place that is in no list at the end of one."""
    end = of.rows.size + number
    last = of.before[end]
    of.after[last], of.before[place] = place, last
    of.after[place], of.before[end] = end, place


@compiled
def _choose(chosen, keys, of):
    """Take vacant places, then those of rows whose keys are below `keys`, the lowest first. Returns how many."""
    found, number = 0, _FREE
    while found < chosen.size:
        place = of.after[of.rows.size + number]
        if place < of.rows.size:
            _unlink(place, of)
            chosen[found] = place
            found += 1
        elif number == keys - 1 or keys == 0:
            break
        else:
            number = 0 if number == _FREE else number + 1
    return found


@compiled
def _give_back(places, of):
    for i in range(places.size):
        place = places[i]
        if of.after[place] == place and of.taken_by[place] == _NOBODY:
            _append(place, _FREE if of.rows[place] == _VACANT else of.keys[place], of)


@compiled
def _take(places, batch, of):
    for i in range(places.size):
        _unlink(places[i], of)
        of.taken_by[places[i]] = batch


@compiled
def _vacate(places, of):
    for i in range(places.size):
        place = places[i]
        if of.rows[place] != _VACANT:
            of.codes[of.rows[place]] = of.file_codes[place]
            of.rows[place], of.taken_by[place], of.dirty[place] = _VACANT, _NOBODY, False
            _unlink(place, of)
            _append(place, _FREE, of)


@compiled
def _enter(rows, places, keys, dirty, of):
    for i in range(rows.size):
        row, place = rows[i], places[i]
        of.file_codes[place], of.codes[row], of.rows[place] = of.codes[row], IN_RAM + place, row
        of.keys[place], of.dirty[place] = keys[i], dirty
        _unlink(place, of)
        _append(place, keys[i], of)


@compiled
def _logged(rows, codes, sums, new_sums, of):
    for i in range(rows.size):
        row = rows[i]
        sums[row] = new_sums[i]
        code = of.codes[row]
        if code >= IN_RAM:
            of.file_codes[code - IN_RAM], of.dirty[code - IN_RAM] = codes[i], False
        else:
            of.codes[row] = codes[i]
