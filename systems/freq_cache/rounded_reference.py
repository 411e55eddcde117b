"""What a cache with a rounding slow tier is verified against: plain training, its rows rounded when the cache's are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import Rows, SystemSpec
from systems.freq_cache.cache import Cache
from systems.freq_cache.collection import CachedEmbeddingBagCollection
from systems.reference import ReferenceSystem

Write = Callable[[Tensor, Tensor], None]


class RoundedReference(ReferenceSystem):
    """Plain training; a row is rounded whenever the cache would write it to its slow tier.

    Which rows those are says `cache`, one of the same spec that is shown the same batches: no value of it is used. A
    row whose update the system under test loses, doubles or takes too late differs here as it would without rounding.
    """

    ids_on_host = True

    def __init__(self, spec: SystemSpec, cache: CachedEmbeddingBagCollection) -> None:
        super().__init__(spec)
        self._cache = cache
        self._written: list[tuple[Cache, Tensor]] = []
        for part in cache.caches:
            part.tier.write = partial(self._note, part, part.tier.write)  # type: ignore[method-assign]

    @property
    def look_ahead(self) -> int:
        return self._cache.look_ahead

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        self._cache.prefetch(features)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        self._cache(features)
        self._round()
        return super().forward(features.to(self.spec.device))

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        super().load_rows(table, start, rows)
        self._cache.load_rows(table, start, rows)
        self._round()

    def flush(self) -> None:
        self._cache.flush()
        self._round()

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.flush()
        return super().read_rows(table, ids)

    def _note(self, cache: Cache, write: Write, rows: Tensor, records: Tensor) -> None:
        write(rows, records)
        self._written.append((cache, rows))

    @torch.no_grad()
    def _round(self) -> None:
        for cache in self._cache.caches:
            cache.writer.wait()
        written, self._written = self._written, []
        for cache, rows in written:
            for name, table in cache.tables.items():
                ids = rows - cache.start_of(name)
                ids = ids[(ids >= 0) & (ids < table.num_embeddings)]
                layout = cache.tier.layout
                rounded = layout.unpack(layout.pack(super().read_rows(name, ids))).weights
                self._weight(name).index_copy_(0, ids.to(self.spec.device), rounded.to(self.spec.device))
