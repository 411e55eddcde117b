"""Exchange of ids and pooled vectors between ranks, with torchrec's all-to-all."""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed.dist_data import KJTAllToAll, PooledEmbeddingsAllToAll
from torchrec.distributed.embedding_sharding import bucketize_kjt_before_all2all

from systems.features import FeatureGroups
from systems.sharded.placement import Layout, Shard


class Exchange:
    """Sends a batch's ids to the ranks that own their rows, and pooled vectors back. All calls are collective.

    Args:
        tables: All tables. A feature of a table that is cut is looked up on every rank.
        layout: Shards of every rank.
        device: Where rows are pooled. Ids travel on the host.
    """

    def __init__(self, tables: Sequence[EmbeddingBagConfig], layout: Layout, *, device: torch.device) -> None:
        named = {table.name: table for table in tables}

        def is_whole(shard: Shard) -> bool:
            return bool(shard.rows == named[shard.table].num_embeddings)

        cut = [shard.table for shard in layout[0] if not is_whole(shard)]
        self._input = FeatureGroups(tables)
        self._rows = torch.tensor([table.num_embeddings for table in tables for _ in table.feature_names])
        self._dims = {name: int(table.embedding_dim) for table in tables for name in table.feature_names}
        self._whole = [
            [name for shard in shards if is_whole(shard) for name in named[shard.table].feature_names]
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
        self._order, splits = self._by_rank()
        self._widths = [sum(self._dims[name] for name in (*names, *self._cut)) for names in self._whole]
        group = dist.group.WORLD
        self._to_owners = KJTAllToAll(group, splits)
        self._to_samples = PooledEmbeddingsAllToAll(group, self._widths, device)

    def _by_rank(self) -> tuple[list[int], list[int]]:
        """Indices into `whole features, bucket 0, bucket 1, ...` of each rank's features, and their number per rank."""
        order: list[int] = []
        splits, first_bucket, at = [], sum(map(len, self._whole)), 0
        for rank, names in enumerate(self._whole):
            order += range(at, at + len(names))
            order += range(first_bucket + rank * len(self._cut), first_bucket + (rank + 1) * len(self._cut))
            splits.append(len(names) + len(self._cut))
            at += len(names)
        return order, splits

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
