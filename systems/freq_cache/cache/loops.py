"""The index of a cache's rows and slots, in int32 arrays, and compiled loops over them.

The *location* of a row is its slot, or negative if it has none. Then its bits hold the batch until which it is pinned
and, if the slow tier does not have its latest values yet, the batch that writes them back. While the distinct rows of a
batch are found, the location of a row that was seen is `slots` plus its number among the distinct rows. The *status* of
a slot is its row's key, flags and pin, the pin in the same bits as in a location.

Loops that write to scattered memory prefetch it: a store that misses the processor's caches stalls all later ones.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.cache.policy import EMPTY, LEVELS, Queues, empty_queues, pop, push
from systems.freq_cache.compiled import compiled, inlined, prefetch, prefetch_ahead

Int32s = NDArray[np.int32]

NONE = -1
"""No batch, or no row."""
ABSENT = -(2**31)
"""The location of a row that is in no slot, neither pinned nor written back by a batch."""
UNPINNED, PINS = 0, 255
"""The pin of a row that is not pinned, and how many batches in a row have pins that differ."""
_PIN_BIT, _WRITER_BIT, _WRITERS = 23, 22, 2**22

KEYS = LEVELS - 1
"""The bits of the key in a status; flags are above them."""
CHANGED, QUEUED, USED = LEVELS, 2 * LEVELS, 4 * LEVELS
"""Flags: the row changed since it was written back; the slot is in a queue; the row was used since it joined that."""
TAKEN, PINNED, LOWEST = 0, 1, 2
"""Numbers of the state: slots with a row, slots whose row is pinned, the lowest key whose queue may hold a slot."""

_FAR, _NEAR = 64, 16
"""How many elements ahead a loop asks for memory: for what an element leads to, and for what that leads to."""
_OFTEN, _ROW_BITS = 4, 2**31 - 1
"""From so many ids a row on, most ids of a feature were seen before; and the bits of a row."""


class Index(NamedTuple):
    """The arrays.

    Attributes:
        where: The location of every row, int32 `[rows]`.
        row_of: The row in every slot or `NONE`, int32 `[slots]`.
        status: The status of every slot, int32 `[slots]`.
        state: int64 `[3]`.
        queues: Slots whose row no announced batch needs, one queue for every key.
    """

    where: Int32s
    row_of: Int32s
    status: Int32s
    state: NDArray[np.int64]
    queues: Queues

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> "Index":
        """The index of a cache without rows."""
        queues = empty_queues(queues=LEVELS, slots=slots)
        where, row_of = np.full(rows, ABSENT, np.int32), np.full(slots, NONE, np.int32)
        return cls(where, row_of, np.zeros(slots, np.int32), np.zeros(3, np.int64), queues)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.where, self.row_of, self.status, self.state, *self.queues))


@inlined
def pin_of(batch):
    """The pin of rows that are pinned until a batch."""
    return 1 + batch % PINS


@inlined
def written_back_by(batch):
    """The location of an absent row that a batch writes back."""
    return ABSENT | 1 << _WRITER_BIT | batch % _WRITERS


@inlined
def writer_of(location, batch):
    """The last batch before this one that may write an absent row back, or `NONE`.

    Batches are kept modulo `_WRITERS`. A later one than the true one does no harm: whoever waits for it waits for all.
    """
    return batch - 1 - ((batch - 1 - location) & (_WRITERS - 1)) if location & 1 << _WRITER_BIT else NONE


@inlined
def pin_at(bits):
    """The pin in the location of an absent row, or in a status."""
    return bits >> _PIN_BIT & PINS


@inlined
def with_pin(bits, pin):
    """The location of an absent row, or a status, with another pin."""
    return bits & ~(PINS << _PIN_BIT) | pin << _PIN_BIT


@compiled
def queue_up(index, slot):
    """Put a slot that is in no queue at the back of that of its key."""
    status = np.int64(index.status[np.uint64(slot)])
    push(index.queues, status & KEYS, slot)
    index.status[np.uint64(slot)] = status & ~USED | QUEUED
    index.state[LOWEST] = min(index.state[LOWEST], status & KEYS)


@compiled
def find_distinct(ids, ends, starts, sizes, inverse, rows, counts, seen, counted, where, behind):
    """Find the distinct rows of a batch in order of first occurrence, and number its ids by them.

    `ids`, `ends` and `starts` are as `Ids` has them, `sizes` the rows of each feature's table, int64 `[features]`.
    `inverse` receives the number of every id's row, `rows` the rows, and `counts` how many ids ask for each; int32
    `[n]`. `seen` and `counted`, int64 `[n + 1]`, are room; the latter is zero before and after. Meanwhile the location
    of a row that was seen is its number, from `behind` on, where no location is: one call, which is not interrupted.

    Returns how many rows there are, and which id is the first bad one, or `NONE`.
    """
    found, begin, bad = 0, 0, NONE
    for feature in range(ends.size):
        part = (ids[begin : ends[feature]], starts[feature], np.uint64(sizes[feature]), inverse[begin : ends[feature]])
        if _OFTEN * sizes[feature] <= ends[feature] - begin:
            found, bad = _find_often(*part, found, seen, counted, where, behind)
        else:
            found, bad = _find_rarely(*part, found, seen, counted, where, behind)
        if bad != NONE:
            bad += begin
            break
        begin = ends[feature]
    for i in range(found):
        if i + _FAR < found:
            prefetch(where, seen[i + _FAR] & _ROW_BITS)
        rows[i], counts[i], counted[i] = seen[i] & _ROW_BITS, counted[i], 0
        where[np.uint64(rows[i])] = seen[i] >> 32
    return found, bad


@compiled
def _find_often(ids, start, size, inverse, found, seen, counted, where, behind):
    """Find the rows of a feature most of whose ids were seen before. Returns how many there are, and a bad id."""
    for i in range(ids.size):
        if np.uint64(ids[i]) >= size:
            return found, i
        row = np.uint64(start + ids[i])
        location = np.int64(where[row])
        number = location - behind
        if location < behind:
            number = found
            seen[np.uint64(number)] = (location << 32) | np.int64(row)
            where[row] = behind + number
            found += 1
        counted[np.uint64(number)] += 1
        inverse[i] = number
    return found, NONE


@compiled
def _find_rarely(ids, start, size, inverse, found, seen, counted, where, behind):
    """As `_find_often`, where many ids are new. The loop has no branch on that: the processor could not predict it."""
    for i in range(ids.size):
        if i + _FAR < ids.size:
            prefetch(where, start + ids[i + _FAR])
        if np.uint64(ids[i]) >= size:
            return found, i
        row = np.uint64(start + ids[i])
        location = np.int64(where[row])
        new = location < behind
        number = found if new else location - behind
        seen[np.uint64(found)] = (location << 32) | np.int64(row)
        where[row] = behind + number
        counted[np.uint64(number)] += 1
        inverse[i] = number
        found += new
    return found, NONE


@compiled
def pin(rows, batch, later, found, index):
    """Pin rows until a batch. `later`: the pins that they have are of earlier batches, else they have precedence.

    `found`, int32 `[u]`, receives their locations. Those in slots stay there until their pins are taken back.
    """
    where, status = index.where, index.status
    code, pinned = pin_of(batch), 0
    for i in range(rows.size):
        prefetch_ahead(where, rows, i)
        if i + _NEAR < rows.size:
            prefetch(status, max(where[np.uint64(rows[i + _NEAR])], 0))
        location = np.int64(where[np.uint64(rows[i])])
        found[i] = location
        bits = location if location < 0 else np.int64(status[np.uint64(location)])
        unpinned = pin_at(bits) == UNPINNED
        bits = with_pin(bits, code) if later or unpinned else bits
        if location < 0:
            where[np.uint64(rows[i])] = bits
        else:
            status[np.uint64(location)] = bits
            pinned += unpinned
    index.state[PINNED] += pinned


@compiled
def find_absent(rows, counts, found, missed, absent, absent_rows, index):
    """Find which of a batch's distinct rows are absent, in `found` and since: rows enter for batches in between.

    `missed`, bool `[u]`, receives whether a row is, and `absent` and `absent_rows`, int32 `[u]`, which are, in order.
    Returns how many, and how many ids ask for them. No branch: the processor could not predict it.
    """
    end = ids = 0
    for i in range(rows.size):
        ahead = min(i + _FAR, rows.size - 1)
        prefetch(index.where, rows[ahead] & found[ahead] >> 31)  # row 0 for those in slots
        now = index.where[np.uint64(rows[i] & found[i] >> 31)]
        found[i] = now if found[i] < 0 else found[i]
        missed[i] = found[i] < 0
        absent[end], absent_rows[end] = i, rows[i]
        end += missed[i]
        ids += counts[i] * missed[i]
    return end, ids


@compiled
def unpin(rows, batch, index):
    """Take back the pins of an announced batch: rows that are pinned until it are pinned no longer."""
    where, status = index.where, index.status
    code = pin_of(batch)
    for i in range(rows.size):
        location = np.int64(where[np.uint64(rows[i])])
        if location < 0:
            if pin_at(location) == code:
                where[np.uint64(rows[i])] = with_pin(location, UNPINNED)
        elif pin_at(status[location]) == code:
            status[location] = with_pin(status[location], UNPINNED)
            index.state[PINNED] -= 1
            if status[location] & QUEUED == 0:
                queue_up(index, location)


@compiled
def choose(victims, found, index):
    """Take slots off the queues until `victims` is full, of which `found` are there, or until the queues are empty.

    The lowest key is first. A slot whose row got a higher key since it was queued, or was used if `USED` is told of it,
    joins the back of the queue of its key. One whose row is pinned is left out: it is queued when it is no longer.
    Returns how many victims there are.
    """
    status, state, queues, lowest = index.status, index.state, index.queues, index.state[LOWEST]
    while found < victims.size and lowest < LEVELS:
        front = queues.ends[2 * lowest]
        if front == EMPTY:
            lowest += 1
            continue
        prefetch(status, queues.store[min(front + _NEAR, queues.store.size - 1)])
        slot = pop(queues, lowest)
        bits = np.int64(status[np.uint64(slot)])
        status[np.uint64(slot)] = bits & ~QUEUED
        if pin_at(bits) != UNPINNED:
            continue
        if bits & USED or bits & KEYS > lowest:
            queue_up(index, slot)
            lowest = min(lowest, bits & KEYS)
        else:
            victims[found] = slot
            found += 1
    state[LOWEST] = lowest
    return found


@compiled
def admit(after, *moves):
    """Choose slots for the first absent rows of a batch, and `exchange` if there are enough.

    `moves` are its arguments. `after`, int32 `[m]`, receives the last batch that may write each row back, `entered` the
    slots: free ones in order, then those of victims; see `choose`. Returns how many slots there are, and its result.
    """
    _, found, absent, _, entered, _, _, batch, _, _, _, index = moves
    taken = index.state[TAKEN]
    for k in range(entered.size):
        after[k], entered[k] = writer_of(np.int64(found[np.uint64(absent[k])]), batch), taken + k
    chosen = choose(entered, min(entered.size, index.row_of.size - taken), index)
    return chosen, exchange(*moves) if chosen == entered.size else 0


@compiled
def exchange(rows, found, absent, keys, entered, back_rows, back_slots, batch, changes, fixed, reinserts, index):
    """Let rows leave, give their slots, `entered`, int32 `[m]`, to the first absent rows of a batch, and `_settle` all.

    `keys`: of the distinct rows, or of the absent ones where keys are `fixed`. `found`, the locations of the distinct
    rows, receives the slots. A row that gets none, in an overflow batch, is written back by this batch all the same, if
    that `changes` it. `back_rows` and `back_slots` receive changed rows that leave, and their slots: returns how many.
    """
    where, row_of, status, state, _ = index
    pin, left, back = pin_of(batch), written_back_by(batch), 0
    for k in range(absent.size):
        row = np.uint64(rows[np.uint64(absent[k])])
        location = np.int64(where[row])
        later = pin_at(location)
        if k >= entered.size:
            where[row] = with_pin(left if changes else location, UNPINNED if later == pin else later)
            continue
        if k + _FAR < entered.size:
            prefetch(row_of, entered[k + _FAR])
        if k + _NEAR < entered.size:
            prefetch(where, row_of[np.uint64(entered[k + _NEAR])])
            prefetch(where, rows[np.uint64(absent[k + _NEAR])])
        slot = np.uint64(entered[k])
        if slot == state[TAKEN]:
            state[TAKEN] += 1
        elif status[slot] & CHANGED:
            back_rows[back], back_slots[back] = row_of[slot], slot
            where[np.uint64(row_of[slot])] = left
            back += 1
        else:
            where[np.uint64(row_of[slot])] = ABSENT
        row_of[slot], status[slot] = row, with_pin(np.int64(keys[k if fixed else absent[k]]), later)
        state[PINNED] += later != UNPINNED
        found[np.uint64(absent[k])] = where[row] = slot
    _settle(keys, found, batch, changes, fixed, reinserts, index)
    return back


@compiled
def _settle(keys, found, batch, changes, fixed, reinserts, index):
    """Unpin and queue the rows of a batch that no later one needs.

    `found`: the slots of its distinct rows, int32 `[u]`; `keys`: the keys of these, not read if they are `fixed`.
    `changes`: the batch is trained. `reinserts`: a slot in a queue joins it anew before it leaves: its row was used.
    """
    status, pin, unpinned = index.status, pin_of(batch), 0
    mark, reinserted = CHANGED if changes else 0, USED if reinserts else 0
    for i in range(found.size):
        if i + _NEAR < found.size:
            prefetch(status, max(found[i + _NEAR], 0))
        if found[i] < 0:
            continue
        bits = np.int64(status[np.uint64(found[i])]) | mark
        bits = bits if fixed else bits & ~KEYS | keys[i]
        bits |= (bits & QUEUED) * (USED // QUEUED) & reinserted
        last = pin_at(bits) == pin
        unpinned += last
        bits = with_pin(bits, UNPINNED) if last else bits
        status[np.uint64(found[i])] = bits
        if (pin_at(bits) == UNPINNED) & (bits & QUEUED == 0):
            queue_up(index, found[i])
    index.state[PINNED] -= unpinned
