"""One cache: the tables of one width, their rows in a slow tier and the hot ones in slots on the device.

Words of the planner:

- A **slot** holds one row in the cache. A row without a slot is **absent**.
- To **announce** a batch is to tell the planner its distinct rows before it is looked up. The **window** is all batches
  that are announced and not planned yet. To **withdraw** is to forget them, as if they had never been announced.
- A row is **pinned** until the last batch of the window that needs it.
- A **plan** has the moves of the earliest batch of the window: which rows to fetch into which slots, which rows to
  write back first, and the slot of every id. A **miss** is a row that was absent when its batch was planned.
- A **key** is a policy's rank of a row. For every key there is a **queue** of slots whose rows are not pinned. The
  slot at the front of the lowest queue is the next **victim**: its row is evicted.
"""
