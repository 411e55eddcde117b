"""ColossalAI's CachedEmbedding, by frequency of the dataset or by use."""
