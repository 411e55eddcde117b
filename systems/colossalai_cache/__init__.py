"""ColossalAI's `CachedEmbeddingBag` itself, version 0.5.0: the cache of arXiv 2208.05321 as its authors published it.

- `system`: it as a system of the comparison. `cache`: one `CachedEmbeddingBag`, with what its users write around it.
- `library`: how it is imported, and what stands in for CUDA on a CPU.
"""

from systems.colossalai_cache.system import ColossalAICache

__all__ = ["ColossalAICache"]
