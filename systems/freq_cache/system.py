"""The cache as a system of the comparison with its variants, and its reference for verification."""

import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import EmbeddingSystem, Rows, SystemSpec, Tier, knowledge
from systems.freq_cache import sizing
from systems.freq_cache.arguments import COPY_ENGINES, POLICIES
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.collection import CachedEmbeddingBagCollection
from systems.freq_cache.sizing import CacheSpec
from systems.reference import ReferenceSystem


class FreqCache(CachedEmbeddingBagCollection):
    """`CachedEmbeddingBagCollection` built from a spec. All rows start at zero, because the harness loads them.

    `policy`, `look_ahead`, `copy_engine` and `slow_rows` are arguments of the collection. `tier=file` keeps the rows in
    a temporary directory, `tier=pinned` in page-locked host memory.

    With rows in a directory and a budget of memory of which a part plays the device, the rest is a level of RAM;
    `levels=2` makes slots of all of it.
    """

    about = (
        "All rows in host memory or in a file, the hot ones in slots on the GPU: for tables larger than GPU memory "
        "where few rows get most lookups."
    )

    variants = {
        "policy": POLICIES,
        "look_ahead": ("0", "1", "2", "4", "8", "16", "32", "64"),
        "tier": ("host", "pinned", "file"),
        "copy_engine": COPY_ENGINES,
        "slow_rows": tuple(sizing.SLOW_ROWS),
        "levels": ("3", "2"),
    }

    bypasses = False

    def __init__(self, spec: SystemSpec) -> None:
        options = CacheSpec.of(spec)
        if options.tier == "file":
            kept = tempfile.TemporaryDirectory(prefix="freq_cache_")
            weakref.finalize(self, kept.cleanup)  # registered first, so it comes last
            options = replace(options, directory=Path(kept.name))
        self._build(options)

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        needed, options = super().required_bytes(spec), CacheSpec.of(spec)
        if options.tier == "file":
            needed[Tier.DISK] = sizing.slow_bytes(options)  # all rows are loaded: none is left out of the file
        return needed

    @classmethod
    def reference(cls, spec: SystemSpec) -> EmbeddingSystem:
        options = CacheSpec.of(spec)
        if not options.row_error:
            return super().reference(spec)
        # it sees rows leave where the host writes them
        return RoundedReference(spec, FreqCache(replace(options, copy_engine="staged")))

    @property
    def prior_knowledge(self) -> str:
        source = "training frequencies" if self.spec.policy == "static" else "the past"
        return knowledge(source, look_ahead=self.look_ahead)

    @property
    def busy_between_steps(self) -> bool:
        # what was written to a file goes from the page cache to the drive later
        return self.threads > 0 or self.spec.tier == "file"

    @property
    def slots(self) -> int:
        return sum(cache.planner.slots for cache in self.caches)


class RoundedReference(ReferenceSystem):
    """Plain training; a row is rounded whenever the cache would write it to its slow tier.

    `cache`, built from the same spec and given the same batches, determines which rows; its values are not used. If the
    system under test loses, doubles or delays an update, the row differs as much as it would without rounding.
    """

    ids_on_host = True

    def __init__(self, spec: SystemSpec, cache: CachedEmbeddingBagCollection) -> None:
        super().__init__(spec)
        self._cache = cache
        self._written: list[tuple[Cache, Tensor]] = []
        for part in cache.caches:
            part.tier.write = partial(self._note, part, part.tier.write)  # type: ignore[method-assign]
            if part.tier.ram_rows:  # rows are rounded on their way to RAM; without it `evict` is `write`
                part.tier.evict = partial(self._note, part, part.tier.evict)  # type: ignore[method-assign]

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

    def _note(self, cache: Cache, write: Callable[[Tensor, Tensor], None], rows: Tensor, records: Tensor) -> None:
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
