"""Statistics per rank, and bytes sent between ranks."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.records.measured import Memory, RankShare, Traffic
from suite.records.record import Measurement
from systems.sharded.system import ShardedSystem


class SentBytes(TorchDispatchMode):
    """Counts bytes that this rank sends to others inside the context, without the all-reduce of dense layers.

    Attributes:
        ids: Bytes of integer tensors: ids, and lengths of bags.
        pooled: Bytes of floating tensors: pooled vectors, and their gradients.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids = self.pooled = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        given = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)] if len(args) > 1 else []
        total = sum(tensor.nbytes for tensor in given)
        if name == "alltoall_base_":
            splits: Sequence[int] = args[4] or [1] * ranks
            others = total - total * splits[rank] // max(1, sum(splits))
        elif "reduce_scatter" in name:
            others = total - total // ranks
        elif "allgather" in name:
            others = total * (ranks - 1)
        else:
            return
        if given[0].is_floating_point():
            self.pooled += others
        else:
            self.ids += others


def share_of(system: ShardedSystem, measured: Measurement, sent: SentBytes, *, steps: int) -> RankShare:
    """This rank's traffic in the counted steps, which are the last ones, and its memory."""
    memory = measured.memory
    counted = measured.traffic or Traffic(steps=steps)
    ahead = system.look_ahead  # ids of this many batches were sent before counting
    optimizer = system.spec.optimizer
    widths = {
        name: 4 * table.embedding_dim + optimizer.state_bytes(table.embedding_dim)
        for name, table in system.tables.items()
    }
    return RankShare(
        table_bytes=sum(shard.rows * widths[shard.table] for shard in system.shards),
        device_bytes=sum(memory.anatomy_bytes.get(f"device/{purpose}", 0) for purpose in ("rows", "state")),
        host_peak_rss_bytes=memory.host_peak_rss_bytes,
        device_reserved_bytes=memory.device_reserved_bytes,
        lookups=counted.lookups,
        unique_ids=counted.unique_ids,
        unique_misses=counted.unique_misses,
        ids_bytes=sent.ids * steps // (steps - ahead) if steps > ahead else None,
        pooled_bytes=sent.pooled,
    )


def memory_of_all(each: Sequence[Memory]) -> Memory:
    """Sums over ranks; peaks may have occurred at different times."""
    purposes = dict.fromkeys(key for memory in each for key in memory.anatomy_bytes)
    sums = {name: _sum(getattr(one, name) for one in each) for name in Memory.model_fields if name != "anatomy_bytes"}
    anatomy = {key: sum(memory.anatomy_bytes.get(key, 0) for memory in each) for key in purposes}
    return Memory.model_validate({**sums, "anatomy_bytes": anatomy})


def traffic_of_all(each: Sequence[Traffic]) -> Traffic:
    """Sums over ranks; ranges of a table that is cut are disjoint, so no row is counted twice."""
    names = ("lookups", "unique_ids", "unique_misses", "lookup_misses", "bytes_fetched", "bytes_written_back")
    sums = {name: _sum(getattr(traffic, name) for traffic in each) for name in names}
    overflow = max(traffic.overflow_batches for traffic in each)
    return Traffic(steps=each[0].steps).model_copy(update={**sums, "overflow_batches": overflow})


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)
