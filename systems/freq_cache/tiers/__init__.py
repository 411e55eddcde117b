"""Slow tiers, which keep the rows of a cache as records. Nothing here depends on slots or on a planner.

- `slow_tier`: the interface, and tiers in host memory, also page-locked. `copy_kernels`: copies of pinned rows by the
  device.
- `file`: a tier in a directory. `row_map` and `row_file`: where its rows are, and its records; `blocks`: its file.
- `ram_level`: a tier in a directory with a level of RAM. `ram_index`: which rows have a place there.
- `layout`: layout of a record.
"""
