"""Decides which rows enter and leave a cache. Numbers in, numbers out: it moves no row and sees no tensor.

What the words mean:

- A **slot** holds one row in the cache. A row without a slot is **absent**.
- To **announce** a batch is to tell the planner its distinct rows before it is looked up. The **window** is all batches
  that are announced and not planned yet. To **withdraw** is to forget them, as if they had never been announced.
- A row is **pinned** until the last batch of the window that needs it.
- A **plan** says what the earliest batch of the window needs: which rows enter which slots, which rows are written
  back first, and the slot of every id. A **miss** is a row that was absent when its batch was planned.
- A **key** is how a policy rates a row. For every key there is a **queue** of slots whose rows are not pinned. The
  slot at the front of the lowest queue is the next **victim**: its row leaves.

Where to look: `planner.py` does the steps in order, `loops.py` has their compiled loops and says what every number in
the arrays means, `queues.py` has the queues. `policy.py` has the policies; a new one goes there.
"""
