"""Tables sharded over ranks, the processes of one training run: each rank has some tables, or some rows of all.

A batch is split into as many parts of equal length as there are ranks. Every rank sends the ids of its part to the
ranks that have their rows, these pool them and send the pooled vectors back; gradients go the same way. torchrec does
both exchanges, and divides sparse gradients by the number of ranks, so that a loss which is a mean over the part
trains as the mean over the whole batch.

- `placement`: shards of each rank; the base class of sharded systems. `by_torchrec`: systems that torchrec shards.
- `collection`: our cache, one per rank, as a module and as a system of the comparison, with the exchanges.
"""
