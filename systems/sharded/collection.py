"""The cache sharded over ranks, as a system and as a module: each rank has its own rows and its own cache.

Ids and pooled vectors are exchanged between ranks with torchrec's all-to-all.
"""

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed.dist_data import KJTAllToAll, PooledEmbeddingsAllToAll
from torchrec.distributed.embedding_sharding import bucketize_kjt_before_all2all

from systems.contract import CacheRatio, Counters, MemoryBreakdown, Placement, Rows, SparseOptimizer, SystemSpec, Tier
from systems.features import FeatureGroups
from systems.freq_cache import FreqCache
from systems.freq_cache.initial_rows import check_first_rows, first_rows_of
from systems.sharded.placement import PLACEMENTS, Layout, Shard, ShardedSystem, expected_misses, place

_CHUNK_ROWS = 1 << 20


class Exchange:
    """Sends a batch's ids to the ranks that own their rows, and pooled vectors back. All calls are collective.

    Args:
        tables: All tables. A feature of a table that is cut is looked up on every rank.
        layout: Shards of every rank.
        device: Where rows are pooled. Ids travel on the host.
    """

    def __init__(self, tables: Sequence[EmbeddingBagConfig], layout: Layout, *, device: torch.device) -> None:
        named = {table.name: table for table in tables}
        cut = [shard.table for shard in layout[0] if shard.rows < named[shard.table].num_embeddings]
        self._input = FeatureGroups(tables)
        self._rows = torch.tensor([table.num_embeddings for table in tables for _ in table.feature_names])
        self._dims = {name: int(table.embedding_dim) for table in tables for name in table.feature_names}
        self._whole = [
            [name for shard in shards if shard.table not in cut for name in named[shard.table].feature_names]
            for shards in layout
        ]
        self._cut = [name for table in cut for name in named[table].feature_names]
        self._bounds = [
            torch.tensor(
                [*(s.first for shards in layout for s in shards if s.table == table), named[table].num_embeddings]
            )
            for table in cut
            for _ in named[table].feature_names
        ]
        # indices into `whole features, bucket 0, bucket 1, ...` of each rank's features
        self._order: list[int] = []
        first_bucket = sum(map(len, self._whole))
        for rank, names in enumerate(self._whole):
            at = len(self._order) - rank * len(self._cut)
            self._order += range(at, at + len(names))
            self._order += range(first_bucket + rank * len(self._cut), first_bucket + (rank + 1) * len(self._cut))
        self._widths = [sum(self._dims[name] for name in (*names, *self._cut)) for names in self._whole]
        group = dist.group.WORLD
        self._to_owners = KJTAllToAll(group, [len(names) + len(self._cut) for names in self._whole])
        self._to_samples = PooledEmbeddingsAllToAll(group, self._widths, device)

    def send(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Send each rank the ids of its rows, and receive this rank's ids from all ranks. Collective.

        Args:
            features: Features of this rank's samples, on the host; every rank has the same number of samples.

        Returns:
            Features of this rank's shards, whole tables first, samples by rank; ids count from a shard's first row.

        Raises:
            ValueError: a feature is missing, or there are per-sample weights.
            IndexError: an id is outside its table.
        """
        (ordered,) = self._input.split(features)
        limits = self._rows.repeat_interleave(torch.tensor(ordered.length_per_key()))
        if bool(((ordered.values() < 0) | (ordered.values() >= limits)).any()):
            raise IndexError("the batch has an id outside its table")
        keys = ordered.keys()
        parts = []
        if whole := [keys.index(name) for names in self._whole for name in names]:
            parts.append(ordered.permute(whole))
        if self._cut:
            bucketed, _ = bucketize_kjt_before_all2all(
                ordered.permute([keys.index(name) for name in self._cut]),
                num_buckets=len(self._whole),
                block_sizes=torch.ones(len(self._cut), dtype=torch.int64),  # the bounds below take its place
                block_bucketize_row_pos=self._bounds,
            )
            parts.append(bucketed)
        joined = parts[0] if len(parts) == 1 else KeyedJaggedTensor.concat(parts)
        return self._to_owners(joined.permute(self._order)).wait().wait()

    def collect(self, pooled: Tensor) -> KeyedTensor:
        """The pooled vectors of this rank's samples, in table order.

        `pooled`: pooled rows of the result of `send`, in its order, fp32 `[samples of all ranks, sum of dims]`.
        """
        pieces: dict[str, Tensor] = {}
        parts = []  # each rank's partial sums of the bags of cut tables
        for names, block in zip(self._whole, self._to_samples(pooled).wait().split(self._widths, dim=1), strict=True):
            dims = [self._dims[name] for name in names]
            *whole, part = block.split([*dims, block.shape[1] - sum(dims)], dim=1)
            pieces.update(zip(names, whole, strict=True))
            parts.append(part)
        if self._cut:
            bags = functools.reduce(torch.add, parts)
            pieces.update(zip(self._cut, bags.split([self._dims[name] for name in self._cut], dim=1), strict=True))
        return KeyedTensor(list(self._dims), list(self._dims.values()), torch.cat([pieces[n] for n in self._dims], 1))


class ShardedFreqCache(ShardedSystem):
    """The cache over ranks built from a spec. All rows start at zero, because the harness loads them."""

    variants = {
        "placement": PLACEMENTS,
        "policy": FreqCache.variants["policy"],
        "look_ahead": FreqCache.variants["look_ahead"],
    }
    whole_tables = {"placement": "tables"}
    ids_on_host = True
    one_width = False

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.budget, CacheRatio)  # `support` has refused others
        how, known, ratio = spec.parameters["placement"], spec.frequencies or {}, spec.budget.ratio
        misses = None
        if how == "misses":
            misses = expected_misses(spec.tables, known, cache_ratio=ratio, batch_lookups=spec.batch_lookups)
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
        announced = self._announced and self._announced[0][0] is features
        sent = self._announced.popleft()[1] if announced else self._exchange.send(features)
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
        for shard in self.shards if seed is not None else ():
            stream = list(self.tables).index(shard.table)
            first_rows = first_rows_of([self.tables[shard.table]], seed=seed, streams=[stream])
            for start in range(0, shard.rows, _CHUNK_ROWS):
                ids = torch.arange(start, min(start + _CHUNK_ROWS, shard.rows)) + shard.first
                self.load_shard(shard, start, Rows(first_rows(ids)))


def _alone(spec: SystemSpec) -> SystemSpec:
    """The spec of one rank's cache, with defaults for all other parameters."""
    defaults = {name: values[0] for name, values in FreqCache.variants.items()}
    return replace(spec, parameters={**defaults, **spec.parameters})
