"""The cache as a module for any model, a replacement of torchrec's collections.

- `pooled`, `sequence`: a pooled row per bag, or a row per id. `base`: their base class.
- `arguments`: validation of arguments; `optimizers`: conversion of torch's optimizers. `build`: construction of caches.
- `batches`, `pipeline`: announced batches, and the order of operations over several batches and caches.
"""

from systems.freq_cache.collection.arguments import EXCHANGES, POLICIES
from systems.freq_cache.collection.pooled import CachedEmbeddingBagCollection
from systems.freq_cache.collection.sequence import CachedEmbeddingCollection

__all__ = ["EXCHANGES", "POLICIES", "CachedEmbeddingBagCollection", "CachedEmbeddingCollection"]
