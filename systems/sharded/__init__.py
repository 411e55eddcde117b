"""Tables spread over ranks, the processes of one training run: each rank has some tables, or some rows of all.

A batch is cut into as many parts of equal length as there are ranks. Every rank sends the ids of its part to the ranks
that have their rows, these pool them, and the pooled vectors travel back; gradients go the same way. Both ways are
torchrec's own. Sparse gradients are divided by the number of ranks there, so that a loss which is a mean over the part
trains as the mean over the whole batch.

- `system`: what these systems share. `by_torchrec`: those that torchrec shards.
- `collection`: our cache, one per rank, as a module and as a system of the comparison.
- `placement`: which rank has which rows. `distribution`: ids to their owners and pooled vectors back.
"""
