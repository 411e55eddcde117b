"""Slow tiers, which keep the rows of a cache as records. Nothing here depends on slots or on a planner.

- `slow_tier`: the interface. `host_memory`, `pinned`, `file`: in host memory, in page-locked memory, in a file.
- `copies`: scattered writes of rows to a table.
- `layout`: layout of a record. `int8_rows`: rows in 8 bits.
- `exchange`: pinned rows that the device reads and writes.
- `row_map`, `positions`, `row_file`, `blocks`: positions of rows in a file tier, and its file.
"""

from systems.freq_cache.tiers.blocks import STAGING_BYTES
from systems.freq_cache.tiers.copies import put_rows
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.host_memory import HostTier
from systems.freq_cache.tiers.layout import RowLayout, width_of
from systems.freq_cache.tiers.pinned import PinnedTier
from systems.freq_cache.tiers.row_map import JSON, SUM_BYTES, DamagedTier, checksum_of, sync_directory, write_synced
from systems.freq_cache.tiers.slow_tier import SlowTier

__all__ = [
    "JSON",
    "STAGING_BYTES",
    "SUM_BYTES",
    "DamagedTier",
    "FileTier",
    "HostTier",
    "PinnedTier",
    "RowLayout",
    "SlowTier",
    "checksum_of",
    "put_rows",
    "sync_directory",
    "width_of",
    "write_synced",
]
