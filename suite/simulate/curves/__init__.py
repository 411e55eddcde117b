"""Miss-ratio curves of LRU caches at every size, and how to split slots among tables."""
