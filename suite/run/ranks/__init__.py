"""A cell on several ranks: processes that share the tables of a system, and every batch.

- `launch`: the cell's process starts the ranks with torchrun's agent and tells how they ended.
- `rank`: one of them. `group`: how they talk to each other.
- `training`: data-parallel dense layers around sharded tables. `verify`: verification against one rank.
- `account`: what every rank did, and what they sent each other.
"""
