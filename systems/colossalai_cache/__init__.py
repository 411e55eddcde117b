"""ColossalAI's `CachedEmbeddingBag` itself, version 0.5.0: the cache of arXiv 2208.05321 as its authors published it.

- `system`: the system of the comparison.
- `cache`: one `CachedEmbeddingBag` with the training code around it, its import, and stand-ins for CUDA calls on a CPU.
"""

from systems.colossalai_cache.system import ColossalAICache

__all__ = ["ColossalAICache"]
