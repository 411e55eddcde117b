"""The frequency-aware software cache: rows in host memory, the hot ones in slots on the device (arXiv 2208.05321)."""

from systems.freq_cache.collection import CachedEmbeddingBagCollection

__all__ = ["CachedEmbeddingBagCollection"]
