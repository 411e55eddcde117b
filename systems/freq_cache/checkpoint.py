"""Checkpoints: all rows in a directory, to resume from with a cache of any size; and rows for torch's own checkpoints.

A failed save leaves the last one.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, TensorWriteData, WriteItem, WriteItemType

from systems.answers import Rows
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.tiers.commits import (
    JSON,
    Damaged,
    checksum_of,
    make_directory,
    read_manifest,
    sync_directory,
    write_manifest,
    write_synced,
)
from systems.freq_cache.tiers.slow_tier import RowLayout
from systems.spec import check_hyper_parameters

MANIFEST = "manifest.json"
_VERSION = 3
_REMEDY = "take an older checkpoint"
_CHUNK_ROWS = 1 << 18
_STREAMED_BYTES = 32 << 20
"""Bytes of a chunk of `StreamedRows`."""
_OWN = re.compile(r"table_\d+\.[0-9a-f]{12}")
"""The name of a table's file, with the mark of its save."""


def save(directory: Path, caches: Mapping[str, Cache], *, hyper: Mapping[str, float]) -> None:
    """Write the rows of all tables, with their optimizer state, as the slow tiers have them.

    A table's file has its records, and behind them what the policy has learnt of its rows. The manifest is replaced
    last and names the files it belongs to: until then, or after an error, the directory holds what it held before.
    """
    make_directory(directory)
    mark = uuid.uuid4().hex[:12]
    written: list[Path] = []
    tables: dict[str, Any] = {}
    try:
        for at, (name, cache) in enumerate(caches.items()):
            written.append(directory / f"table_{at}.{mark}")
            crc = write_synced(written[-1], _content(cache, name))
            own = {"file": written[-1].name, "crc32": crc, "steps": cache.pool.steps, "policy": _policy(cache)}
            tables[name] = _shape(cache, name) | own
        write_manifest(directory / MANIFEST, {"version": _VERSION, "hyper": dict(hyper), "tables": tables})
    except BaseException:
        manifest = directory / MANIFEST
        if not (manifest.is_file() and mark in manifest.read_text()):  # else it was renamed before the error came
            for path in written:
                path.unlink(missing_ok=True)
        raise
    sync_directory(directory)
    for old in directory.glob("table_*.*"):
        if old not in written and _OWN.fullmatch(old.name):
            old.unlink(missing_ok=True)


def load(directory: Path, caches: Mapping[str, Cache], *, hyper: Mapping[str, float]) -> Mapping[str, float]:
    """Overwrite the rows of all tables, with their optimizer state. Returns the saved hyper-parameters.

    `hyper`: those of the collection, which must have the same names.

    Raises:
        FileNotFoundError: the directory holds no checkpoint.
        ValueError: it is of other tables, another optimizer or another version; nothing was overwritten.
        Damaged: its files are not what was written; nothing was overwritten.
        OSError: rows could not be read or written; the caches refuse to go on until a checkpoint is loaded whole.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} holds no checkpoint: there is no {MANIFEST} in it")
    manifest = read_manifest(path, version=_VERSION, remedy=_REMEDY)
    tables, saved = manifest["tables"], cast(dict[str, float], manifest["hyper"])
    if set(tables) != set(caches):
        different = ", ".join(sorted(set(tables) ^ set(caches)))
        raise ValueError(
            f"{path} is of other tables than the collection, {different} is not in both: build with its tables"
        )
    if set(saved) != set(hyper):
        raise ValueError(
            f"{path} has the hyper-parameters {', '.join(saved)}, the collection {', '.join(hyper)}: build with the "
            "table_kwargs that it was saved with"
        )
    for name, value in saved.items():
        check_hyper_parameters({name.rpartition(".")[2]: value})
    for name, cache in caches.items():
        wanted = _shape(cache, name)
        found = {key: tables[name].get(key) for key in wanted}
        if found != wanted:
            raise ValueError(f"{path}: table {name} is {found}, the collection has {wanted}: build with the former")
        _check(path, tables[name], _layout(cache).record_bytes)
    with ExitStack() as overwriting:
        for cache in caches.values():
            overwriting.enter_context(cache.overwriting(0, cache.tier.rows))
        for name, cache in caches.items():
            _load_table(directory / tables[name]["file"], cache, name, tables[name])
    return saved


def _load_table(path: Path, cache: Cache, table: str, entry: Mapping[str, Any]) -> None:
    layout, learnt = _layout(cache), _learnt(cache, table)
    with path.open("rb") as file:
        for start in range(0, entry["rows"], _CHUNK_ROWS):
            size = min(_CHUNK_ROWS, entry["rows"] - start) * layout.record_bytes
            data = torch.from_numpy(np.fromfile(file, np.uint8, size))
            if data.numel() < size:
                raise Damaged(f"{path} was cut while it was read: load it again")
            records = data.view(layout.element).view(-1, layout.width)
            cache.load(table, start, cache.tier.layout.repacked(records, layout))
        if entry["policy"] == _policy(cache):
            learnt[:] = np.fromfile(file, learnt.dtype, learnt.size)
    cache.pool.steps = entry["steps"]


def _check(manifest: Path, entry: Mapping[str, Any], record_bytes: int) -> None:
    """Refuse a table's file that is not what was written, and one that is not beside the manifest."""
    if not _OWN.fullmatch(entry["file"]):
        raise Damaged(f"{manifest} names {entry['file']}, which no save has written: take another checkpoint")
    path, size = manifest.with_name(entry["file"]), entry["rows"] * (record_bytes + entry["policy"][1])
    if not path.is_file():
        raise Damaged(f"{path} is missing, or no file: {_REMEDY}")
    if path.stat().st_size != size:
        raise Damaged(f"{path} has {path.stat().st_size:,} bytes, not {size:,}: {_REMEDY}")
    if checksum_of(path) != entry["crc32"]:
        raise Damaged(f"{path} is damaged, its checksum does not match: {_REMEDY}")


def _learnt(cache: Cache, table: str) -> NDArray[Any]:
    """Statistics that the policy has learnt of a table's rows, a view; empty where it learns nothing."""
    state, start = cache.planner.policy.state, cache.start_of(table)
    return np.empty(0, np.uint8) if state is None else state[start : start + cache.tables[table].num_embeddings]


def _policy(cache: Cache) -> list[JSON]:
    """Name of the policy, and bytes that it has learnt of a row."""
    policy = cache.planner.policy
    return [type(policy).__name__, 0 if policy.state is None else policy.state.itemsize]


def _layout(cache: Cache) -> RowLayout:
    """Layout of the records in a checkpoint: rows have the type of the slots, whatever that of the slow tier."""
    return replace(cache.tier.layout, dtype=cache.pool.weights.dtype)


def _shape(cache: Cache, table: str) -> dict[str, Any]:
    """Properties of a table that must match for its rows to be loaded."""
    layout, rows = _layout(cache), cache.tables[table].num_embeddings
    dtype = str(layout.dtype).removeprefix("torch.")
    return {"rows": int(rows), "dim": int(layout.dim), "dtype": dtype, "state": dict(layout.state)}


def _content(cache: Cache, table: str) -> Iterator[memoryview]:
    """The content of a table's file, in parts."""
    first, stop = cache.start_of(table), cache.start_of(table) + cache.tables[table].num_embeddings
    for start in range(first, stop, _CHUNK_ROWS):
        rows = torch.arange(start, min(start + _CHUNK_ROWS, stop))
        records = cache.tier.layout.empty(rows.numel())
        cache.tier.read(rows, records)
        records = _layout(cache).repacked(records, cache.tier.layout)
        yield records.view(torch.uint8).numpy().reshape(-1).data
    yield np.ascontiguousarray(_learnt(cache, table)).view(np.uint8).data


class StreamedRows(torch.Tensor):
    """The weights of a table, or one state of its optimizer, as a checkpoint asks for them: some rows at a time.

    It has the shape and type of the whole; whoever reads it in another way finds NaN. The methods with underscores are
    the protocol of `torch.distributed._checkpointable`: the whole is written, and read, as chunks of rows.

    Attributes:
        table, entry: Name of the table, and `weight` or the name of a state.
        read_rows, load_rows: Those of the collection.
        loads: A planner that calls `write` asks what to load.
    """

    table: str
    entry: str
    read_rows: Callable[[str, Tensor], Rows]
    load_rows: Callable[[str, int, Rows], None]
    loads: bool

    def write(self, start: int, column: int, values: Tensor) -> None:
        """Overwrite values from a row and a column on."""
        rows, own = self._read(start, start + values.shape[0])
        (own if own.dim() == 1 else own[:, column : column + values.shape[1]]).copy_(values)
        self.load_rows(self.table, start, rows)

    def _read(self, start: int, stop: int) -> tuple[Rows, Tensor]:
        """Rows from one to before another, on the host, and what this is of them."""
        rows = self.read_rows(self.table, torch.arange(start, stop))
        return rows, rows.weights if self.entry == "weight" else rows.state[self.entry]

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
        start = cast(torch.Size, index.offset)[0]  # every chunk has one
        return self._read(start, min(start + self._step, len(self)))[1].to(self.dtype)

    @property
    def _step(self) -> int:
        """Rows of a chunk."""
        return max(1, _STREAMED_BYTES * len(self) // (self.numel() * self.dtype.itemsize))

    def _chunks(self) -> list[ChunkStorageMetadata]:
        rows, *rest = self.shape
        starts, zeros = range(0, rows, self._step), [0] * len(rest)
        sizes = [min(self._step, rows - start) for start in starts]
        return [
            ChunkStorageMetadata(offsets=torch.Size([start, *zeros]), sizes=torch.Size([size, *rest]))
            for start, size in zip(starts, sizes, strict=True)
        ]


class RowLoadPlanner(DefaultLoadPlanner):
    """Loads as torch does by default, and what is read of `StreamedRows` goes to their cache at once."""

    def create_local_plan(self) -> LoadPlan:
        streamed = [value for value in self.state_dict.values() if isinstance(value, StreamedRows)]
        for rows in streamed:
            rows.loads = True
        try:
            return super().create_local_plan()
        finally:  # another planner may get the same rows later
            for rows in streamed:
                rows.loads = False

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        rows = self.state_dict[read_item.dest_index.fqn]
        if isinstance(rows, StreamedRows):
            return torch.empty(read_item.lengths, dtype=rows.dtype)
        found: Tensor = super().resolve_tensor(read_item)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        rows = self.state_dict[read_item.dest_index.fqn]
        if isinstance(rows, StreamedRows):
            chunk = cast(torch.Size, read_item.dest_index.offset)  # every tensor has one
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
    found: dict[str, StreamedRows] = {}
    for table, cache in caches.items():
        config, state = cache.tables[table], cache.tier.layout.state
        for entry in ("weight", *state):
            shape = [config.num_embeddings, *([] if state.get(entry) == 1 else [config.embedding_dim])]
            dtype = cache.pool.weights.dtype if entry == "weight" else torch.float32
            rows = torch.full((), torch.nan, dtype=dtype).expand(shape).as_subclass(StreamedRows)
            rows.table, rows.entry, rows.loads = table, entry, False
            rows.read_rows, rows.load_rows = read_rows, load_rows
            found[f"{prefix}.{table}.{entry}"] = rows
    return found
