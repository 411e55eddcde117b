"""One cache: the tables of one width, their rows in a slow tier and the hot ones in slots on the device.

- `cache`: the operations on a batch, for one cache: announce, plan, send, move, look up.
- `overflow`: batches that bypass it. `backward_group`: several batches before one backward. `inference`: lookups that
  do not change it. `traffic`: its counters.
- `mover`: copies of a batch's rows through `staging`; `writer`: write-backs on a background thread; `transfer`: copies
  on side streams.
- `slot_table`: slots, looked up and updated by fbgemm.
"""

from systems.freq_cache.cache.cache import Bags, Cache
from systems.freq_cache.cache.mover import BatchMover, Planned
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.traffic import counters_of
from systems.freq_cache.cache.transfer import Transfer

__all__ = ["Bags", "BatchMover", "Cache", "Planned", "SlotTable", "Transfer", "counters_of"]
