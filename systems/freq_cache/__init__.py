"""The frequency-aware software cache: rows in a slow tier, the hot ones in slots on the device (arXiv 2208.05321).

The life of a batch, a verb for each act:

- announce: the cache learns of a coming batch. Its ids are checked, and the planner notes its distinct rows.
- plan: the planner decides which rows leave and which enter, on the planning thread.
- send: records that can be read already are sent to the device, on the sending thread.
- move: changed rows leave their slots for the slow tier, missing rows enter. The training thread does it, just before
  the batch is looked up.
- look up: rows are pooled from their slots. Backward updates them there.
- finish: a batch with more distinct rows than slots bypassed the cache; its rows are taken home, to their slots or to
  the slow tier.
- withdraw: announced batches that are not planned are forgotten, because a batch comes before them that nobody
  announced, or because rows are read or loaded. They are announced again later.

Words: a *row* is a table's, a *slot* is a place for one on the device, a *record* is a row with its optimizer state. A
*pool* is an array of slots. A *bypassing* batch has more distinct rows than the cache has slots.

From the outside in; each room says in its `__init__` what is inside, and nobody else imports that:

- `system`: the cache as a system of the comparison. `collection/`: the cache as a module for any model.
- `saving/`: checkpoints to resume from, also torch's own, and what a directory of rows holds after a crash.
- `sizing`: how many slots fit what a cache is given. `initial_rows`: first values of rows.
- `cache/`: the acts above for tables of one width, and rows on their way between the slow tier and slots.
- `planner/` decides which rows leave and enter; it moves none. `tiers/` keeps all rows, in host memory or in a file.
- `compiled`: how loops are compiled; `threads`: how the work on one batch is shared out.
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
