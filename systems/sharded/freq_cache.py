"""The cache over ranks as a system of the comparison."""

from __future__ import annotations

from systems.contract import CacheRatio, SystemSpec, knowledge
from systems.freq_cache import FreqCache
from systems.sharded.collection import ShardedCachedEmbeddingBagCollection
from systems.sharded.placement import PLACEMENTS


class ShardedFreqCache(ShardedCachedEmbeddingBagCollection):
    """The cache over ranks built from a spec. All rows start at zero, because the harness loads them."""

    about = FreqCache.about + " Each rank has rows and a cache of its own."
    variants = {
        "placement": PLACEMENTS,
        "policy": FreqCache.variants["policy"],
        "look_ahead": FreqCache.variants["look_ahead"],
    }

    def __init__(self, spec: SystemSpec) -> None:
        assert isinstance(spec.budget, CacheRatio)  # `support` has refused others
        super().__init__(
            spec.tables,
            optimizer=spec.optimizer,
            cache_ratio=spec.budget.ratio,
            placement=spec.parameters["placement"],
            policy=spec.parameters["policy"],
            look_ahead=int(spec.parameters["look_ahead"]),
            frequencies=spec.frequencies,
            device=spec.device,
            batch_lookups=spec.batch_lookups,
            seed=None,
        )

    @property
    def knew(self) -> str:
        known = "training frequencies" if "static" in self.spec.parameters.values() else "the past"
        return knowledge(known, look_ahead=self.look_ahead)
