"""A cell on several ranks: processes that share the tables of a system, and every batch.

- `rank`: the cell's process starts the ranks and reports their result; each counts the bytes that it sends to others.
- `data_parallel`: training on parts of batches around sharded tables, and its verification against one rank.
"""
