"""The look-ahead cache of cDLRM."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally, table_of
from suite.simulate.traces.trace import Int32s, Int64s, Seen
from systems.freq_cache.compiled import compiled, prefetch_ahead

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

    Details counted: `auxiliary_lookups`, ids read into the auxiliary area; `rows_left_out`; `rows_overwritten`.
    Memory: 4 B per row, 4.2 B per slot, and about 10 B per id of the window.
    """

    variants = {"look_ahead": ("64", "2", "16", "256")}
    source = "lkp411/cDLRM main_no_ddp.py, model_no_ddp.py, cache_manager.py; Balasubramanian et al., RecSys 2021"
    bypasses = True
    moves_state = False

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        sizes = np.array([rows for _, rows in setting.trace.tables], np.int64)
        sets = np.minimum(sizes, most_sets(sizes.tolist(), setting.slots))
        first_sets = sets.cumsum() - sets
        self._cache = _Ways(
            starts=setting.trace.table_starts,
            sets=sets,
            first_sets=first_sets,
            cached=np.full(WAYS * int(sets.sum()), NONE, np.int32),
            kept=np.zeros(int(sets.sum()), np.uint16),
            window=np.zeros(setting.trace.rows, np.int32),
        )
        self._windows = 0
        self._generator = np.random.default_rng(0)
        self._coming: deque[Seen] = deque()
        self._loaded: deque[_Loaded] = deque()

    @property
    def slots(self) -> int:
        return self._cache.cached.size

    @property
    def look_ahead(self) -> int:
        return int(self.parameters["look_ahead"]) - 1

    def announce(self, batch: Seen) -> None:
        self._coming.append(batch)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if not self._loaded:
            self._open_window()
        self._coming.popleft()
        loaded = self._loaded.popleft()
        rows, occurrences = batch.unique
        bypassing = np.empty(rows.size, np.bool_)
        _find(rows, self._cache, bypassing)
        if tally is None:
            return
        auxiliary = int(occurrences[bypassing].sum())
        missed = loaded.absent | bypassing
        self.count(batch, missed, tally)
        tally.rows_fetched += loaded.fetched + auxiliary
        tally.rows_written_back += loaded.written_back
        tally.add_details(
            auxiliary_lookups=auxiliary, rows_left_out=loaded.left_out, rows_overwritten=loaded.overwritten
        )

    def _open_window(self) -> None:
        """Load what the batches that have come need."""
        self._windows += 1
        self._cache.kept[:] = 0
        absent = []
        for batch in self._coming:
            rows, _ = batch.unique
            absent.append(np.empty(rows.size, np.bool_))
            _enter_window(rows, self._cache, self._windows, absent[-1])
        entering = np.concatenate([batch.unique[0][mine] for batch, mine in zip(self._coming, absent, strict=True)])
        order = np.argsort(entering, kind="stable")
        ways = np.empty(entering.size, np.int8)
        used, overwrote = (np.empty(entering.size, np.bool_) for _ in range(2))
        _draw(entering, order, self._cache, self._generator.random(entering.size), ways, used)
        _load(entering, order, ways, self._cache, self._windows, overwrote)
        begin = 0
        for mine in absent:
            end = begin + int(np.count_nonzero(mine))
            left_out = int(np.count_nonzero(ways[begin:end] == NONE))
            moved = (end - begin - left_out, int(used[begin:end].sum()), left_out, int(overwrote[begin:end].sum()))
            self._loaded.append(_Loaded(mine, *moved))
            begin = end


def most_sets(tables: Sequence[int], slots: int) -> int:
    """The most sets that the largest tables can have if all tables' caches are to fit.

    Args:
        tables: Rows of each table.
        slots: Rows to cache, all tables.

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
    """What the program takes for a prime: from 3 on all that no number from 3 to below its square root divides."""
    if number < 3:
        return False
    divisor = 3
    while divisor * divisor < number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


class _Loaded(NamedTuple):
    """What one batch of a window brought in when the window began.

    `absent`, bool `[u]`: which of its rows were absent then, and in no batch before it; the rest counts such rows.
    """

    absent: Bools
    fetched: int
    written_back: int
    left_out: int
    overwritten: int


class _Ways(NamedTuple):
    """Of every table its first row, sets and first set, int64; of every way its row, int32, or NONE.

    `kept`: a bit for every way of a set that the window in hand needs, uint16; `window`: of every row the last window
    that had it, int32, from 1 on.
    """

    starts: Int64s
    sets: Int64s
    first_sets: Int64s
    cached: Int32s
    kept: NDArray[np.uint16]
    window: Int32s


@compiled
def _set_of(row, cache, table):
    return cache.first_sets[table] + (row - cache.starts[table]) % cache.sets[table]


@compiled
def _way_of(row, cached, at):
    for way in range(WAYS):
        if cached[np.uint64(WAYS * at + way)] == row:
            return way
    return NONE


@compiled
def _find(rows, cache, bypassing):
    """Which rows are not cached."""
    table = 0
    for i in range(rows.size):
        table = table_of(rows[i], cache.starts, table)
        bypassing[i] = _way_of(rows[i], cache.cached, _set_of(rows[i], cache, table)) == NONE


@compiled
def _enter_window(rows, cache, window, absent):
    """Have cached rows of a batch keep their ways. `absent` receives the other ones that the window did not have."""
    table = 0
    for i in range(rows.size):
        prefetch_ahead(cache.window, rows, i)
        row = np.uint64(rows[i])
        absent[i] = False
        if cache.window[row] == window:
            continue
        cache.window[row] = window
        table = table_of(rows[i], cache.starts, table)
        at = _set_of(rows[i], cache, table)
        way = _way_of(rows[i], cache.cached, at)
        absent[i] = way == NONE
        if way != NONE:
            cache.kept[at] |= 1 << way


@compiled
def _draw(rows, order, cache, draws, ways, used):
    """Draw a way for every row, or NONE. `used` receives which of the ways had a row before.

    All are in order of `rows` but for the draws, float64 in [0, 1), which are in that of `order`.
    """
    table = 0
    for nth in range(rows.size):
        i = order[nth]
        table = table_of(rows[i], cache.starts, table)
        at = _set_of(rows[i], cache, table)
        free = 0
        for way in range(WAYS):
            free += not (cache.kept[at] >> way) & 1
        skipped = int(draws[nth] * free)
        ways[i] = NONE
        for way in range(WAYS):
            if not (cache.kept[at] >> way) & 1:
                if skipped == 0:
                    ways[i] = way
                skipped -= 1
        used[i] = free > 0 and cache.cached[WAYS * at + ways[i]] != NONE


@compiled
def _load(rows, order, ways, cache, window, overwrote):
    """Put rows into their ways. `overwrote` receives which of them took that of another row of the same window."""
    table = 0
    for nth in range(rows.size):
        i = order[nth]
        table = table_of(rows[i], cache.starts, table)
        overwrote[i] = False
        if ways[i] != NONE:
            slot = WAYS * _set_of(rows[i], cache, table) + ways[i]
            before = cache.cached[slot]
            overwrote[i] = before != NONE and cache.window[before] == window
            cache.cached[slot] = rows[i]
