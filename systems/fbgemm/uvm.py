"""fbgemm's unified virtual memory: rows in host memory that kernels address directly, with and without a cache.

`uvm_host_mapped=True` (the default here) uses malloc + cudaHostRegister; `memory=managed` uses cudaMallocManaged with
the host as preferred location. On a CPU neither exists: rows are host-resident and `placement` reports that.
"""

from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.fbgemm.tbe_system import Lookup, TBESystem
from systems.fbgemm.uvm_cache import UVM, UVMCaching, cache_sets
from systems.features import Group


class FbgemmUVM(UVM, TBESystem):
    """Rows in UVM, no cache: every lookup crosses the link."""

    about = (
        "All rows in host memory, which the GPU reads across the link at every lookup: takes the least GPU memory, "
        "at the price of speed."
    )
    same_on_host = "full_gpu"
    location = EmbeddingLocation.MANAGED

    def cache_options(self, group: Group) -> dict[str, Any]:
        return {"uvm_host_mapped": self.spec.parameters["memory"] == "host_mapped"}


class FbgemmUVMCaching(UVMCaching, TBESystem):
    """Rows in UVM behind fbgemm's 32-way set-associative device cache, one cache per pooling and type of rows.

    `prefetch=on` populates the cache for the next batch on a stream of its own (LRU only, as in fbgemm).
    """

    about = (
        "All rows in host memory, the ones used last (or most) in fbgemm's own cache on the GPU: for tables larger "
        "than GPU memory, of which it takes 4 to 12 bytes for every row."
    )
    same_on_host = "full_gpu"
    location = EmbeddingLocation.MANAGED_CACHING

    def cache_options(self, group: Group) -> dict[str, Any]:
        return {**self.caching_options(), "cache_sets": cache_sets(self.spec, group.tables)}

    def _read(self, features: KeyedJaggedTensor) -> list[Lookup]:
        self._counter.observe(features)  # fbgemm counts while it fills
        return self._inputs(features)

    def _fill(self, read: list[Lookup], compute: torch.cuda.Stream) -> None:
        for tensor in (tensor for lookup in read for tensor in lookup if tensor is not None):
            tensor.record_stream(torch.cuda.current_stream())
            tensor.record_stream(compute)
        for tbe, (ids, offsets, _) in zip(self._tbes, read, strict=True):
            tbe.prefetch(ids, offsets, forward_stream=compute)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        pooled = self._look_up(self._take(features)) if self._announced else super().forward(features)
        return self._released(pooled)
