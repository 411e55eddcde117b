"""A cell on several ranks: processes that share the tables of a system, and every batch.

- `launch`: the cell's process starts the ranks with torchrun's agent and reports their result.
- `rank`: the process of one rank. `group`: the process group and its collectives.
- `training`: data-parallel dense layers around sharded tables. `verify`: verification against one rank.
- `account`: statistics per rank, and bytes sent between ranks.
"""
