"""Decides which rows enter and leave a cache. Numbers in, numbers out: it moves no row and sees no tensor.

What the words mean:

- A **slot** holds one row in the cache. A row without a slot is **absent**.
- To **announce** a batch is to tell the planner its ids before it is looked up. The planner then finds the batch's
  distinct rows. Each distinct row of each announced batch is a **use**. The planner links the uses of one row, from
  the earliest batch to the latest, so it knows when each row is needed next.
- The **ring** holds the uses of all announced batches. The number of a use in it is a **position**. When a batch is
  planned or withdrawn, its positions become free for later batches.
- A **part** of a batch is a group of its features. Large batches are divided into parts, one for each thread. No two
  parts have a table in common.
- The **window** is all batches that are announced and not planned yet.
- A **plan** says what the earliest batch of the window needs: which rows enter which slots, which rows are written
  back first, and the slot of every id. To make it, the planner **surveys** the batch's rows (which of them are
  absent?), **chooses** a slot for each absent one, **assigns** these slots, and **releases** the batch's rows: each
  waits for its next use or, if it has none, in the queue of its key.
- A **miss** is a row that was absent when its batch was planned.
- A **key** is how a policy rates a row. Among the rows that no batch of the window needs, the lowest key leaves first.
- A **queue** holds slots that may be given to other rows, in the order in which that happens. There is one for every
  key and one for every announced batch. A slot whose row must leave is a **victim**.
- To **withdraw** is to forget all batches of the window, as if they had never been announced.

Where to look: `planner.py` does these steps in order and shares large batches out to threads (`threads.py`).
`announce_loops.py` and `plan_loops.py` are the compiled loops of the steps. They work on the arrays of `index.py`,
which says what every number in them means, and on the queues of `order.py`. `queues.py` and `ring.py` hand out room.
`policy.py` has the policies; a new one goes there.
"""
