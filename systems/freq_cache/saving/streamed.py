"""Rows in checkpoints of `torch.distributed.checkpoint`, read and written in chunks."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType

from systems.answers import Rows
from systems.freq_cache.cache import Cache

_CHUNK_BYTES = 32 << 20


class StreamedRows(torch.Tensor):
    """The weights of a table, or one state of its optimizer, as a checkpoint asks for them: some rows at a time.

    It has the shape and type of the whole; whoever reads it in another way finds NaN. The methods with underscores are
    the protocol of `torch.distributed._checkpointable`: the whole is written, and read, as chunks of rows.

    Attributes:
        read: Gives rows from the first number to the second one, on the host.
        write: Takes the first row, the first column, and values from there on.
        loads: A checkpoint is loaded by a planner that calls `write`.
    """

    read: Callable[[int, int], Tensor]
    write: Callable[[int, int, Tensor], None]
    loads: bool

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets, at),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(self.shape)),
            )
            for at, chunk in enumerate(self._chunks())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        if not self.loads:
            raise RuntimeError("rows of a cache are loaded with planner=RowLoadPlanner(): give it to load()")
        return self._chunks()

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        chunk = next(chunk for chunk in self._chunks() if chunk.offsets == index.offset)
        return self.read(chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0])

    def _chunks(self) -> list[ChunkStorageMetadata]:
        rows, *rest = self.shape
        step = max(1, _CHUNK_BYTES * rows // (self.numel() * self.dtype.itemsize))
        return [
            ChunkStorageMetadata(
                offsets=torch.Size([start, *(0 for _ in rest)]), sizes=torch.Size([min(step, rows - start), *rest])
            )
            for start in range(0, rows, step)
        ]


class RowLoadPlanner(DefaultLoadPlanner):
    """Loads as torch does by default, and what is read of `StreamedRows` goes to their cache at once."""

    def set_up_planner(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - torch's
        super().set_up_planner(*arguments, **options)
        for value in self.state_dict.values():
            if isinstance(value, StreamedRows):
                value.loads = True

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        rows = self.state_dict[read_item.dest_index.fqn]
        if isinstance(rows, StreamedRows):
            return torch.empty(read_item.lengths, dtype=rows.dtype)
        found: Tensor = super().resolve_tensor(read_item)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        rows = self.state_dict[read_item.dest_index.fqn]
        if isinstance(rows, StreamedRows):
            chunk = read_item.dest_index.offset or read_item.dest_offsets
            first, *column = (at + more for at, more in zip(chunk, read_item.dest_offsets, strict=True))
            rows.write(first, column[0] if column else 0, tensor)


def streamed(
    caches: Mapping[str, Cache],
    *,
    prefix: str,
    read_rows: Callable[[str, Tensor], Rows],
    load_rows: Callable[[str, int, Rows], None],
) -> dict[str, StreamedRows]:
    """The rows of all tables, by the names that `state_dict` has for them, which begin with `prefix`.

    `read_rows`, `load_rows`: those of the collection, which refuse whoever may not call it.

    Raises:
        ValueError: the optimizer is Adam, whose number of steps has no place among rows.
    """
    if any(len(cache.tier.layout.state) > 1 for cache in caches.values()):
        raise ValueError("Adam goes on from a number of steps, which no row has: use save() and load()")
    return {
        f"{prefix}.{table}.{entry}": _entry(cache, table, entry, read_rows, load_rows)
        for table, cache in caches.items()
        for entry in ("weight", *cache.tier.layout.state)
    }


def _entry(
    cache: Cache,
    table: str,
    entry: str,
    read_rows: Callable[[str, Tensor], Rows],
    load_rows: Callable[[str, int, Rows], None],
) -> StreamedRows:
    layout, rows = cache.tier.layout, cache.tables[table].num_embeddings
    dtype = cache.pool.weights.dtype if entry == "weight" else torch.float32

    def read_all(start: int, stop: int) -> tuple[Rows, Tensor]:
        found = read_rows(table, torch.arange(start, stop))
        return found, found.weights if entry == "weight" else found.state[entry]

    def read(start: int, stop: int) -> Tensor:
        return read_all(start, stop)[1].to(dtype)

    def write(start: int, column: int, values: Tensor) -> None:
        found, own = read_all(start, start + values.shape[0])
        (own if own.dim() == 1 else own[:, column : column + values.shape[1]]).copy_(values)
        load_rows(table, start, found)

    shape = (rows,) if layout.state.get(entry) == 1 else (rows, layout.dim)
    made = torch.full((), torch.nan, dtype=dtype).expand(*shape).as_subclass(StreamedRows)
    made.read, made.write, made.loads = read, write, False
    return made
