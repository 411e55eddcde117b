"""A cell on several ranks: processes that share the tables of a system, and every batch.

- `launch`: the cell's process starts the ranks with torchrun's agent and reports their result.
- `rank`: the process of one rank, and the bytes that it sends to others.
- `data_parallel`: training on parts of batches around sharded tables, and its verification against one rank.
"""
