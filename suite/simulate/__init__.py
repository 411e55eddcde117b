"""Replays id streams through caches without weights: what a policy misses and moves, and the least that one could."""

import logging

# Here, because spawned processes come by here too: torch warns of one of its names whenever torchrec is imported.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
