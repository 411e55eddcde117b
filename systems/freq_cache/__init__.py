"""The frequency-aware software cache: rows in a slow tier, the hot ones in slots on the device (arXiv 2208.05321)."""

from systems.freq_cache.collection import CachedEmbeddingBagCollection
from systems.freq_cache.planner.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.system import FreqCache

__all__ = ["LFU", "LRU", "CachedEmbeddingBagCollection", "FreqCache", "Policy", "StaticFrequency"]
