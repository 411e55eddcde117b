"""The look-ahead cache of cDLRM.

Source: lkp411/cDLRM main_no_ddp.py, model_no_ddp.py, cache_manager.py; Balasubramanian et al., RecSys 2021.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally
from suite.simulate.trace import Int32s, Int64s, Seen

WAYS = 16
NONE = -1


class CDLRMModel(CacheModel):
    """cDLRM on one device: every `look_ahead` batches a 16-way cache per table is loaded with what they need.

    Each table has a cache of its own: as many sets as the table has rows, at most `--cache-size` of its program raised
    to the next number that this takes for a prime, each of 16 ways (whatever the rows; a table of 3 rows takes 48
    slots). An id belongs to the set of its remainder by the number of sets. Here the largest number of sets is taken
    that fits the slots asked for; with less than 3 for a large table `CannotReplay` is raised.

    When a window of batches begins, the cached rows that it needs keep their ways. Of its absent rows those whose set
    has no other way are left out. Every other one draws one of the other ways of its set, each with the same chance and
    without regard to the others: rows of one set may draw the same way, then the largest stays, the ones before are
    overwritten. All that draw are fetched, and what was in a way that was drawn is written back once per row that drew
    it. For each batch the ids of rows that are not cached are read into an auxiliary area, once per occurrence.

    A row is missed by the first batch of its window that has it, if it was absent when the window began, and by every
    batch that has it while it is not cached. What is moved when the window begins is counted with the former.

    As in its program, rows trained in the auxiliary area are never written back, so what they learnt there is lost.
    Only weights move: it trains with plain SGD. Not modelled: the auxiliary area's own memory (as many rows per table
    as a batch has samples; it is taken to suffice), rows read before an earlier write-back arrived, several devices.
    Its README looks ahead 3,000 batches, its default is 2; here the default is the longest look-ahead of this project's
    own cache, so that the two compare, and the longest what 1 GB of ids allows for.

    Memory: 4 B per row, 5 B per slot, about 10 B per id of the window, and 0.1 kB per row that it loads.
    """

    variants = {"look_ahead": ("64", "2", "16", "256")}
    bypasses = True
    moves_state = False

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        sizes = np.array([rows for _, rows in setting.trace.tables], np.int64)
        self._sets = np.minimum(sizes, most_sets(sizes.tolist(), setting.slots))  # of each table
        self._cached = np.full((int(self._sets.sum()), WAYS), NONE, np.int32)  # rows in the ways of each set
        self._window_of = np.zeros(setting.trace.rows, np.int32)  # the last window that had each row, from 1 on
        self._windows = 0
        self._generator = np.random.default_rng(0)
        self._coming: deque[Seen] = deque()
        # Of each batch of the window: which of its rows were absent when the window began, and in no batch before it;
        # and how many of these drew a way, and a way that had a row.
        self._loaded: deque[tuple[Bools, Int64s]] = deque()

    @property
    def slots(self) -> int:
        return self._cached.size

    @property
    def look_ahead(self) -> int:
        return int(self.parameters["look_ahead"]) - 1

    def announce(self, batch: Seen) -> None:
        self._coming.append(batch)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if not self._loaded:
            self._open_window()
        self._coming.popleft()
        absent, moved = self._loaded.popleft()
        if tally is None:
            return
        rows, occurrences = batch.unique
        bypassing = ~(self._cached[self._sets_of(rows)] == rows[:, np.newaxis]).any(axis=1)
        self.count(batch, absent | bypassing, tally)
        drew, used = moved.tolist()
        tally.rows_fetched += drew + int(occurrences[bypassing].sum())
        tally.rows_written_back += used

    def _sets_of(self, rows: Int32s) -> Int64s:
        """The set of each row, numbered through all tables."""
        table = np.searchsorted(self.setting.trace.table_starts, rows, side="right") - 1
        first_sets = self._sets.cumsum() - self._sets
        of: Int64s = first_sets[table] + (rows - self.setting.trace.table_starts[table]) % self._sets[table]
        return of

    def _open_window(self) -> None:
        """Load what the batches that have come need."""
        self._windows += 1
        kept = np.zeros(self._cached.shape, np.bool_)  # ways whose rows the window needs
        absent = []
        for batch in self._coming:
            rows = batch.unique[0]
            new = self._window_of[rows] != self._windows
            self._window_of[rows] = self._windows
            sets = self._sets_of(rows)
            found, way = (self._cached[sets] == rows[:, np.newaxis]).nonzero()
            kept[sets[found], way] = True
            new[found] = False
            absent.append(new)
        entering = np.concatenate([batch.unique[0][mine] for batch, mine in zip(self._coming, absent, strict=True)])
        order = np.argsort(entering)
        moved = np.zeros((2, entering.size), np.bool_)
        moved[:, order] = self._load(entering[order], kept)
        ends = np.cumsum([np.count_nonzero(mine) for mine in absent])
        parts = np.split(moved, ends[:-1], axis=1)
        self._loaded.extend((mine, part.sum(axis=1)) for mine, part in zip(absent, parts, strict=True))

    def _load(self, rows: Int32s, kept: Bools) -> tuple[Bools, Bools]:
        """Have absent rows, ascending, draw a way and enter it, the largest of one way last.

        Returns whether each draws a way, and a way that had a row.
        """
        sets = self._sets_of(rows)
        open_ways = np.cumsum(~kept[sets], axis=1, dtype=np.int8)
        free = open_ways[:, -1]
        drawn = (self._generator.random(rows.size) * free).astype(np.int8)
        slots = WAYS * sets + np.argmax(open_ways > drawn[:, np.newaxis], axis=1)
        cached = self._cached.reshape(-1)
        drew = free > 0
        used = drew & (cached[slots] != NONE)
        cached[slots[drew]] = rows[drew]
        return drew, used


def most_sets(tables: Sequence[int], slots: int) -> int:
    """The most sets that the largest tables can have if all tables' caches are to fit.

    Raises:
        CannotReplay: they do not fit.
    """

    def wanted(sets: int) -> int:
        return WAYS * sum(min(rows, sets) for rows in tables)

    fits = bisect_right(range(max(tables) + 1), slots, key=wanted) - 1
    while fits > 0 and not taken_for_prime(fits):
        fits -= 1
    if fits == 0:
        raise CannotReplay(
            f"caches of 16 ways for {len(tables)} tables take at least {wanted(3):,} slots, not {slots:,}: "
            "take a larger --cache-ratio"
        )
    return fits


def taken_for_prime(number: int) -> bool:
    """Whether the program takes a number for a prime: from 3 on, if no number from 3 to below its root divides it."""
    return number >= 3 and all(number % divisor for divisor in range(3, math.isqrt(number - 1) + 1))
