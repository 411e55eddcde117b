"""The cache over ranks, as a module and as a system: each rank keeps its rows behind a cache of its own."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.answers import Anatomy, Counters, Placement, Rows, Support, Tier, Verdict, knowledge
from systems.freq_cache import CachedEmbeddingBagCollection, FreqCache
from systems.freq_cache.initial_rows import check_first_rows, first_rows_of
from systems.sharded.exchange import Exchange
from systems.sharded.placement import PLACEMENTS, Shard, expected_misses, place
from systems.sharded.system import ShardedSystem
from systems.spec import CacheRatio, SparseOptimizer, SystemSpec

_CHUNK_ROWS = 1 << 20


class ShardedCachedEmbeddingBagCollection(ShardedSystem):
    """`CachedEmbeddingBagCollection` over the ranks of the default process group. Trains as one rank would.

    The model around it is replicated, in a `DistributedDataParallel` say, which leaves this module alone: it shows no
    parameters. Give the process group a backend for tensors on the host, `cpu:gloo,cuda:nccl`: ids travel there.

    Args:
        tables: All tables, the same on every rank; SUM pooling.
        optimizer: SGD, Adagrad or row-wise Adagrad.
        cache_ratio: Share of its rows that have a slot on each rank.
        placement: Which rank has which rows: `tables`, `rows` or `misses`; see `systems.sharded.placement.place`.
        policy, look_ahead: As for `CachedEmbeddingBagCollection`.
        frequencies: Accesses per row, int64 `[rows]` by table name, for policy `static` and placement `misses`.
        device: Where lookups compute.
        batch_lookups: Ids per batch over all ranks, about.
        seed: Of the initial rows, which do not depend on the number of ranks; None: zero.

    Raises:
        ValueError: the arguments do not go together; the message says what to change.
    """

    ids_on_host = True

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        optimizer: SparseOptimizer,
        cache_ratio: float,
        placement: str = "tables",
        policy: str = "lfu",
        look_ahead: int = 0,
        frequencies: Mapping[str, Tensor] | None = None,
        device: torch.device | str = "cpu",
        batch_lookups: int = 1 << 16,
        seed: int | None = 0,
    ) -> None:
        super().__init__(
            SystemSpec(
                tables=tuple(tables),
                optimizer=optimizer,
                device=torch.device(device),
                budget=CacheRatio(ratio=cache_ratio),
                batch_lookups=batch_lookups,
                frequencies=frequencies,
                parameters={"placement": placement, "policy": policy, "look_ahead": str(look_ahead)},
            )
        )
        check_first_rows(self.spec.tables, seed)
        misses = None
        if placement == "misses" and frequencies is not None:
            misses = expected_misses(tables, frequencies, cache_ratio=cache_ratio, batch_lookups=batch_lookups)
        layout = place(tables, how=placement, ranks=dist.get_world_size(), misses=misses)
        self._shards = layout[dist.get_rank()]
        ranges = {shard.table: slice(shard.first, shard.first + shard.rows) for shard in self._shards}
        used = frequencies if frequencies is not None and policy == "static" else {}
        own_frequencies = {name: used[name][rows] for name, rows in ranges.items() if name in used}
        own = CachedEmbeddingBagCollection(
            [replace(self.tables[shard.table], num_embeddings=shard.rows) for shard in self._shards],
            optimizer=optimizer,
            cache_ratio=cache_ratio,
            policy=policy,
            look_ahead=look_ahead,
            frequencies=own_frequencies or None,
            device=device,
            batch_lookups=batch_lookups,
            seed=None,
        )
        self._own = (own,)  # hidden from `state_dict()`, which has the rows of all ranks
        self._exchange = Exchange(tables, layout, device=self.spec.device)
        self._announced: deque[tuple[KeyedJaggedTensor, KeyedJaggedTensor]] = deque()
        if seed is not None:
            self._load_first_rows(seed)

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return CachedEmbeddingBagCollection.required_bytes(_alone(spec))

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.parameters["placement"] not in PLACEMENTS:
            return Support(Verdict.UNSUPPORTED, f"a placement is one of {', '.join(PLACEMENTS)}")
        if spec.parameters["placement"] == "misses" and spec.frequencies is None:
            return Support(Verdict.UNSUPPORTED, "placement=misses weighs rows by id frequencies: give them")
        alone = CachedEmbeddingBagCollection.support(_alone(spec))
        return super().support(spec) if alone.verdict is Verdict.YES else alone

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def look_ahead(self) -> int:
        return self._own[0].look_ahead

    @property
    def placement(self) -> Placement:
        return self._own[0].placement

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch, as to `CachedEmbeddingBagCollection`; its ids go to their owners at once."""
        sent = self._exchange.send(features)
        self._own[0].prefetch(sent)
        self._announced.append((features, sent))

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        if self._announced and self._announced[0][0] is features:
            _, sent = self._announced.popleft()
        else:
            sent = self._exchange.send(features)
        return self._exchange.collect(self._own[0](sent).values())

    def load_shard(self, shard: Shard, start: int, rows: Rows) -> None:
        self._own[0].load_rows(shard.table, start, rows)

    def read_shard(self, shard: Shard, ids: Tensor) -> Rows:
        return self._own[0].read_rows(shard.table, ids)

    def flush(self) -> None:
        self._own[0].flush()

    def set_learning_rate(self, lr: float) -> None:
        self._own[0].set_learning_rate(lr)

    def memory(self) -> Anatomy:
        return self._own[0].memory()

    def counters(self) -> Counters:
        return self._own[0].counters()

    def reset_counters(self) -> None:
        self._own[0].reset_counters()

    def count_traffic(self, enabled: bool) -> None:
        self._own[0].count_traffic(enabled)

    def _load_first_rows(self, seed: int) -> None:
        for stream, table in enumerate(self.spec.tables):
            fill = first_rows_of([table], seed=seed, streams=[stream])
            for shard in self._shards:
                if shard.table != table.name:
                    continue
                for start in range(0, shard.rows, _CHUNK_ROWS):
                    stop = min(start + _CHUNK_ROWS, shard.rows)
                    weights = torch.empty(stop - start, table.embedding_dim)
                    fill(torch.arange(shard.first + start, shard.first + stop), weights)
                    self.load_shard(shard, start, Rows(weights))


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


def _alone(spec: SystemSpec) -> SystemSpec:
    """The same for a cache of one rank."""
    return replace(spec, parameters={**spec.parameters, "tier": "host", "slow_rows": "fp32"})
