"""The cache sharded over ranks, as a system and as a module: each rank has its own rows and its own cache."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.answers import Counters, MemoryBreakdown, Placement, Rows, Tier
from systems.freq_cache import FreqCache
from systems.freq_cache.initial_rows import check_first_rows, first_rows_of
from systems.sharded.distribution import Exchange
from systems.sharded.placement import PLACEMENTS, Shard, expected_misses, place
from systems.sharded.system import ShardedSystem
from systems.spec import CacheRatio, SparseOptimizer, SystemSpec

_CHUNK_ROWS = 1 << 20


class ShardedFreqCache(ShardedSystem):
    """The cache over ranks built from a spec. All rows start at zero, because the harness loads them."""

    about = FreqCache.about + " Each rank has rows and a cache of its own."
    variants = {
        "placement": PLACEMENTS,
        "policy": FreqCache.variants["policy"],
        "look_ahead": FreqCache.variants["look_ahead"],
    }
    ids_on_host = True
    one_width = False

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.budget, CacheRatio)  # `support` has refused others
        how, known, misses = spec.parameters["placement"], spec.frequencies or {}, None
        if how == "misses":
            ratio, lookups = spec.budget.ratio, spec.batch_lookups
            misses = expected_misses(spec.tables, known, cache_ratio=ratio, batch_lookups=lookups)
        layout = place(spec.tables, how=how, ranks=dist.get_world_size(), misses=misses)
        self._shards = layout[dist.get_rank()]
        if spec.parameters["policy"] != "static":
            known = {}
        tables = tuple(replace(self.tables[shard.table], num_embeddings=shard.rows) for shard in self._shards)
        own = {s.table: known[s.table][s.first : s.first + s.rows] for s in self._shards if s.table in known}
        # a tuple hides it from `state_dict()`, which contains the rows of all ranks
        self._hidden = (FreqCache(replace(_alone(spec), tables=tables, frequencies=own or None)),)
        self._exchange = Exchange(spec.tables, layout, device=spec.device)
        self._announced: deque[tuple[KeyedJaggedTensor, KeyedJaggedTensor]] = deque()

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return FreqCache.required_bytes(_alone(spec))

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.parameters["placement"] not in PLACEMENTS:
            yield f"a placement is one of {', '.join(PLACEMENTS)}"
        if spec.parameters["placement"] == "misses" and spec.frequencies is None:
            yield "placement=misses weighs rows by id frequencies: give them"
        yield from FreqCache.refusals(_alone(spec))
        yield from super().refusals(spec)

    @property
    def own(self) -> FreqCache:
        """This rank's cache."""
        return self._hidden[0]

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def look_ahead(self) -> int:
        return self.own.look_ahead

    @property
    def prior_knowledge(self) -> str:
        return self.own.prior_knowledge

    @property
    def placement(self) -> Placement:
        return self.own.placement

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch to `CachedEmbeddingBagCollection`; its ids are sent to their ranks at once."""
        sent = self._exchange.send(features)
        self.own.prefetch(sent)
        self._announced.append((features, sent))

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        if self._announced and self._announced[0][0] is features:
            _, sent = self._announced.popleft()
        else:
            sent = self._exchange.send(features)
        return self._exchange.collect(self.own(sent).values())

    def load_shard(self, shard: Shard, start: int, rows: Rows) -> None:
        self.own.load_rows(shard.table, start, rows)

    def read_shard(self, shard: Shard, ids: Tensor) -> Rows:
        return self.own.read_rows(shard.table, ids)

    def flush(self) -> None:
        self.own.flush()

    def set_learning_rate(self, lr: float) -> None:
        self.own.set_learning_rate(lr)

    def memory(self) -> MemoryBreakdown:
        return self.own.memory()

    def counters(self) -> Counters:
        return self.own.counters()

    def reset_counters(self) -> None:
        self.own.reset_counters()

    def count_traffic(self, enabled: bool) -> None:
        self.own.count_traffic(enabled)


class ShardedCachedEmbeddingBagCollection(ShardedFreqCache):
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
        seed: Seed of the initial rows, which do not depend on the number of ranks; None: zero.

    Raises:
        ValueError: the arguments do not go together; the message says what to change.
    """

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
        if seed is None:
            return
        streams = {table.name: stream for stream, table in enumerate(self.spec.tables)}
        for shard in self.shards:
            table = self.tables[shard.table]
            first_rows = first_rows_of([table], seed=seed, streams=[streams[table.name]])
            for start in range(0, shard.rows, _CHUNK_ROWS):
                stop = min(start + _CHUNK_ROWS, shard.rows)
                weights = first_rows(torch.arange(shard.first + start, shard.first + stop))
                self.load_shard(shard, start, Rows(weights))


def _alone(spec: SystemSpec) -> SystemSpec:
    """The spec of one rank's cache, with defaults for all other parameters."""
    defaults = {name: values[0] for name, values in FreqCache.variants.items()}
    return replace(spec, parameters={**defaults, **spec.parameters})
