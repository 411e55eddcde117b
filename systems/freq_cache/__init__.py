"""The frequency-aware software cache: rows in a slow tier, the hot ones in slots on the device (arXiv 2208.05321).

Operations on a batch, in order:

- announce: the training thread checks the ids of a coming batch; the planner stores its distinct rows.
- plan: the planning thread decides, for the earliest batch that is announced, which rows to fetch into which slots,
  which rows to write back first, and the slot of every id.
- send: the sending thread reads records that the slow tier has already, and copies them to staging on the device.
- move: the training thread, just before the lookup, writes changed rows back to the slow tier and fetches missing rows
  into slots.
- look up: fbgemm pools rows from their slots. Backward updates them there.
- finish: the training thread writes back the rows of an overflow batch, which was looked up in a pool of its own, to
  their slots or to the slow tier.
- withdraw: the planner forgets announced batches that are not planned, because an unannounced batch is looked up before
  them, or because rows are read or loaded. They are announced again later.

A collection without threads of its own has the training thread do the work of all.

Words: a *row* belongs to a table, a *slot* holds one row on the device, a *record* is a row with its optimizer state. A
row without a slot is *absent*; a *miss* is one that was absent when its batch was planned. A *pool* is an array of
slots. An *overflow* batch has more distinct rows than the cache has slots. The *window* is all batches that are
announced and not planned yet; a row is *pinned* until the last batch of the window that needs it. A *key* is a policy's
rank of a row. For every key there is a *queue* of slots whose rows are not pinned. The slot at the front of the lowest
queue is the next *victim*: its row is evicted.

The way of one batch, with a look-ahead:

1. `collection.forward` gets a `KeyedJaggedTensor`; `prefetch` got it or its like before.
2. `batches.parts_on_host` checks its shapes, and splits it into the features of each cache, ids on the host.
3. `cache.Ids.of` checks the bags of a part, and has its ids, and where features and bags begin.
4. `cache.Planner.distinct` finds its `Distinct` rows; `announce` pins them.
5. `cache.Planner.plan` makes a `Plan`: slots of the ids, rows that leave, rows that enter.
6. `cache.BatchMover.send` copies what a `Planned` batch needs to the device: numbers, and records that the tier has.
7. `cache.BatchMover.move` copies leaving rows out of their slots, and entering records into theirs.
8. `cache.SlotTable.look_up` pools the slots; backward updates them.
9. `cache.Writer` writes what left to the slow tier, on a thread of its own.
10. `pipeline.Pipeline` has 3 to 7 done by the right thread, in order, for all caches.

The training thread does the work of those that the cache does not have: without a look-ahead, or without a free core.
"""

from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.checkpoint import RowLoadPlanner
from systems.freq_cache.collection import CachedEmbeddingBagCollection, CachedEmbeddingCollection
from systems.freq_cache.system import FreqCache

__all__ = [
    "LFU",
    "LRU",
    "CachedEmbeddingBagCollection",
    "CachedEmbeddingCollection",
    "FreqCache",
    "Policy",
    "RowLoadPlanner",
    "StaticFrequency",
]
