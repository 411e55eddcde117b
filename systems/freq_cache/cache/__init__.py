"""One cache: the tables of one width, their rows in a slow tier and the hot ones in slots on the device.

- `cache`: the acts of a batch's life, for one cache.
- `overflow`: batches that bypass it. `backward_group`: several batches before one backward. `inference`: lookups that
  leave it as it is. `traffic`: what it counts.
- `mover`: the rows of a batch on their way, in `staging`; `writer`: those that leave, beside training; `transfer`:
  copies beside the work of the device.
- `slot_table`: slots, looked up and updated by fbgemm.
"""

from systems.freq_cache.cache.cache import Bags, Cache
from systems.freq_cache.cache.mover import BatchMover, Planned
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.traffic import counters_of
from systems.freq_cache.cache.transfer import Transfer

__all__ = ["Bags", "BatchMover", "Cache", "Planned", "SlotTable", "Transfer", "counters_of"]
