"""The frequency-aware software cache: rows in a slow tier, the hot ones in slots on the device (arXiv 2208.05321).

Operations on a batch, in order:

- announce: the training thread checks the ids of a coming batch; the planner stores its distinct rows.
- plan: the planning thread decides which rows to evict and which to fetch.
- send: the sending thread reads records that the slow tier has already, and copies them to staging on the device.
- move: the training thread, just before the lookup, writes changed rows back to the slow tier and fetches missing rows
  into slots.
- look up: fbgemm pools rows from their slots. Backward updates them there.
- finish: the training thread writes back the rows of a batch that bypassed the cache, because it had more distinct rows
  than slots, to their slots or to the slow tier.
- withdraw: the planner forgets announced batches that are not planned, because an unannounced batch is looked up before
  them, or because rows are read or loaded. They are announced again later.

Words: a *row* belongs to a table, a *slot* holds one row on the device, a *record* is a row with its optimizer state. A
*pool* is an array of slots. A *bypassing* batch has more distinct rows than the cache has slots.

From the outside in; the `__init__` of each package lists its modules, which only the package itself imports:

- `system`: the cache as a system of the comparison. `collection/`: the cache as a module for any model.
- `saving/`: checkpoints, also torch's own, and commits of a directory of rows.
- `sizing`: number of slots for a budget. `initial_rows`: initial values of rows.
- `cache/`: the operations above for tables of one width, and copies between the slow tier and slots.
- `planner/` decides which rows to evict and fetch; it moves none. `tiers/` keeps all rows, in host memory or in a file.
- `compiled`: compilation of loops; `threads`: parallel work on one batch.
"""

from systems.freq_cache.collection import CachedEmbeddingBagCollection, CachedEmbeddingCollection
from systems.freq_cache.planner.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.saving.streamed import RowLoadPlanner
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
