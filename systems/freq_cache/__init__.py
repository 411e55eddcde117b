"""The frequency-aware software cache: rows in a slow tier, the hot ones in slots on the device (arXiv 2208.05321).

The life of a batch, a verb for each act:

- announce: the cache learns of a coming batch. Its ids are checked, and the planner notes its distinct rows.
- plan: the planner decides which rows leave and which enter, on the planning thread; records that can be read already
  are sent to the device.
- move: changed rows leave their slots for the slow tier, missing rows enter. The training thread does it, just before
  the batch is looked up.
- look up: rows are pooled from their slots. Backward updates them there.
- finish: a batch with more distinct rows than slots bypassed the cache; its rows are taken home, to their slots or to
  the slow tier.
- withdraw: announced batches that are not planned are forgotten, because a batch comes before them that nobody
  announced, or because rows are read or loaded. They are announced again later.

Words: a *row* is a table's, a *slot* is a place for one on the device, a *record* is a row with its optimizer state. A
*pool* is an array of slots. A *bypassing* batch has more distinct rows than the cache has slots.

Modules, from the outside in:

- `system`: the cache as a system of the comparison. `collection`, `sequence`: the cache as a module for any model,
  pooled and not. `tables`: what the two share.
- `arguments`, `sizing`, `build`: what a collection is built with, how many slots that gives, and its caches.
- `batches`, `pipeline`: batches on their way, and the order of the acts above over several batches and caches.
- `cache`: the acts for tables of one width. `overflow`: batches that bypass it. `together`: several batches before one
  backward. `inference`: lookups that leave it as it is. `traffic`: what it counts.
- `mover`, `transfer`: rows between the slow tier and slots; copies beside the work of the device.
- `pool`: slots, looked up and updated by fbgemm. `padding`: rows of any width in them.
- `torch_optimizers`: optimizers given torch's way. `fused_optimizer`: their learning rate, for schedules.
- `saving/`: checkpoints to resume from, also torch's own, and what a directory of rows holds after a crash.
- `initial_rows`: first values of rows. `compiled`: how loops are compiled.
- `planner/` decides which rows leave and enter; it moves none. `tiers/` keeps all rows, in host memory or in a file.
  `tiers.int8_rows` compresses them; `rounded_reference` is what a cache that rounds rows is verified against.
"""

from systems.freq_cache.collection import CachedEmbeddingBagCollection
from systems.freq_cache.planner.policy import LFU, LRFU, LRU, Policy, StaticFrequency
from systems.freq_cache.saving.streamed import RowLoadPlanner
from systems.freq_cache.sequence import CachedEmbeddingCollection
from systems.freq_cache.system import FreqCache

__all__ = [
    "LFU",
    "LRFU",
    "LRU",
    "CachedEmbeddingBagCollection",
    "CachedEmbeddingCollection",
    "FreqCache",
    "Policy",
    "RowLoadPlanner",
    "StaticFrequency",
]
