"""ColossalAI's `CachedEmbeddingBag`, version 0.5.0: the cache of arXiv 2208.05321 as its authors published it."""
