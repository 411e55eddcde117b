"""The cache as a module for any model, in the place of torchrec's collections.

- `pooled`, `sequence`: a pooled row per bag, or a row per id. `base`: what the two share.
- `arguments`: what a collection is built with, `optimizers` given torch's way among it. `build`: its caches.
- `batches`, `pipeline`: batches on their way, and the order of the acts over several batches and caches.
"""

from systems.freq_cache.collection.arguments import EXCHANGES, POLICIES
from systems.freq_cache.collection.pooled import CachedEmbeddingBagCollection
from systems.freq_cache.collection.sequence import CachedEmbeddingCollection

__all__ = ["EXCHANGES", "POLICIES", "CachedEmbeddingBagCollection", "CachedEmbeddingCollection"]
