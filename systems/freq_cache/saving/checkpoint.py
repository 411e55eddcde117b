"""Checkpoints: all rows in a directory, to resume from with a cache of any size. A failed save leaves the last one."""

import json
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.freq_cache.cache import Cache
from systems.freq_cache.tiers import RowLayout, checksum_of, sync_directory, write_synced
from systems.spec import check_hyper_parameters

MANIFEST = "manifest.json"
_VERSION = 2
_CHECKSUM = "crc32"
_CHUNK_ROWS = 1 << 18


class DamagedCheckpoint(ValueError):
    """A checkpoint is not what was written; the message names the file."""


def save(directory: Path, caches: Mapping[str, Cache], *, hyper: Mapping[str, float]) -> None:
    """Write the rows of all tables, with their optimizer state, as the slow tiers have them.

    The manifest is replaced last and names the files it belongs to: until then the directory holds what it held before.

    Args:
        directory: Made if it does not exist.
        caches: The cache of every table.
        hyper: Hyper-parameters.

    Raises:
        OSError: the files could not be written; the directory holds what it held before.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:12]
    written: list[Path] = []
    tables: dict[str, Any] = {}

    def write(file: str, parts: Iterable[bytes | memoryview]) -> int:
        written.append(directory / file)
        return write_synced(written[-1], parts)

    try:
        for at, (name, cache) in enumerate(caches.items()):
            table, policy, file = cache.tables[name], cache.planner.policy, f"table_{at}.{mark}"
            tables[name] = {
                **_shape(table, _layout(cache)),
                "rows_file": f"{file}.rows",
                "rows_crc32": write(f"{file}.rows", _records(cache, table)),
                "steps": cache.pool.steps,
            }
            if policy.state is not None:
                start = cache.start_of(name)
                part = np.ascontiguousarray(policy.state[start : start + table.num_embeddings])
                tables[name]["policy"] = {
                    "name": type(policy).__name__,
                    "file": f"{file}.policy",
                    "crc32": write(f"{file}.policy", [part.view(np.uint8).data]),
                }
        manifest = {"version": _VERSION, "hyper": dict(hyper), "tables": tables}
        text = json.dumps(manifest | {_CHECKSUM: _checksum_of(manifest)}, indent=1)
        write(f"{MANIFEST}.{mark}", [text.encode()])
        written[-1].replace(directory / MANIFEST)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    sync_directory(directory)
    keep = {path.name for path in written}
    for pattern in ("table_*.*.*", f"{MANIFEST}.*"):
        for old in directory.glob(pattern):
            if old.name not in keep:
                old.unlink(missing_ok=True)


def load(directory: Path, caches: Mapping[str, Cache], *, hyper: Mapping[str, float]) -> Mapping[str, float]:
    """Overwrite the rows of all tables, with their optimizer state. Returns the saved hyper-parameters.

    `hyper`: those of the collection, which must have the same names.

    Raises:
        FileNotFoundError: the directory holds no checkpoint.
        ValueError: it is of other tables, another optimizer or another version; nothing was overwritten.
        DamagedCheckpoint: its files are not what was written; nothing was overwritten.
        OSError: rows could not be read or written; the caches refuse to go on until a checkpoint is loaded whole.
    """
    path = directory / MANIFEST
    manifest = _manifest(path)
    tables, saved = manifest["tables"], manifest["hyper"]
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
        entry, layout = tables[name], _layout(cache)
        wanted = _shape(cache.tables[name], layout)
        found = {key: entry.get(key) for key in wanted}
        if found != wanted:
            raise ValueError(f"{path}: table {name} is {found}, the collection has {wanted}: build with the former")
        _check(_inside(path, entry["rows_file"]), entry["rows_crc32"], entry["rows"] * layout.record_bytes)
        if "policy" in entry:
            learnt = _learnt(cache, entry)
            size = None if learnt is None else entry["rows"] * learnt.itemsize
            _check(_inside(path, entry["policy"]["file"]), entry["policy"]["crc32"], size)
    with ExitStack() as overwriting:
        for cache in caches.values():
            overwriting.enter_context(cache.overwriting(0, cache.tier.rows))
        for name, cache in caches.items():
            entry, layout, done = tables[name], _layout(cache), 0
            for records in _read(directory / entry["rows_file"], layout):
                cache.load(name, done, cache.tier.layout.repacked(records, layout))
                done += records.shape[0]
            if done != entry["rows"]:
                raise DamagedCheckpoint(f"{directory / entry['rows_file']} was cut while it was read: load it again")
            cache.pool.steps = entry["steps"]
            learnt, start = _learnt(cache, entry), cache.start_of(name)
            if learnt is not None:
                learnt[start : start + done] = np.fromfile(directory / entry["policy"]["file"], learnt.dtype)
    return cast(dict[str, float], saved)


def _manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} holds no checkpoint: there is no {MANIFEST} in it")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        version, found = manifest["version"], manifest.pop(_CHECKSUM, None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # not what is written there
        raise DamagedCheckpoint(f"{path} is not a manifest ({error}): take an older checkpoint") from error
    if version != _VERSION:
        raise ValueError(
            f"{path} is of version {version}, this code reads {_VERSION}: load it with the code that wrote it"
        )
    if found != _checksum_of(manifest):
        raise DamagedCheckpoint(f"{path} is damaged, its checksum does not match: take an older checkpoint")
    return manifest


def _checksum_of(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _inside(manifest: Path, file: str) -> Path:
    """A file that a manifest names, beside it."""
    if not re.fullmatch(r"table_\d+\.[0-9a-f]+\.(rows|policy)", file):
        raise DamagedCheckpoint(f"{manifest} names {file}, which no save has written: take another checkpoint")
    return manifest.with_name(file)


def _learnt(cache: Cache, entry: Mapping[str, Any]) -> NDArray[Any] | None:
    """Statistics array of a cache's policy, to load into, if the checkpoint is of the same policy; else None."""
    policy = cache.planner.policy
    return policy.state if entry.get("policy", {}).get("name") == type(policy).__name__ else None


def _layout(cache: Cache) -> RowLayout:
    """Layout of the records in a checkpoint: rows have the type of the slots, whatever that of the slow tier."""
    return replace(cache.tier.layout, dtype=cache.pool.weights.dtype)


def _shape(table: EmbeddingBagConfig, layout: RowLayout) -> dict[str, Any]:
    """Properties of a table that must match for its rows to be loaded."""
    return {
        "rows": table.num_embeddings,
        "dim": layout.dim,
        "dtype": str(layout.dtype).removeprefix("torch."),
        "state": dict(layout.state),
    }


def _records(cache: Cache, table: EmbeddingBagConfig) -> Iterator[memoryview]:
    first = cache.start_of(table.name)
    for start in range(0, table.num_embeddings, _CHUNK_ROWS):
        rows = torch.arange(first + start, first + min(start + _CHUNK_ROWS, table.num_embeddings))
        records = cache.tier.layout.empty(rows.numel())
        cache.tier.read(rows, records)
        records = _layout(cache).repacked(records, cache.tier.layout)
        yield records.view(torch.uint8).numpy().reshape(-1).data


def _read(path: Path, layout: RowLayout) -> Iterator[Tensor]:
    with path.open("rb") as file:
        while data := file.read(_CHUNK_ROWS * layout.record_bytes):
            yield torch.frombuffer(bytearray(data), dtype=layout.element).view(-1, layout.width)


def _check(path: Path, checksum: int, size: int | None) -> None:
    if not path.is_file():
        raise DamagedCheckpoint(f"{path} is missing, or no file: take an older checkpoint")
    if size is not None and path.stat().st_size != size:
        raise DamagedCheckpoint(f"{path} has {path.stat().st_size:,} bytes, not {size:,}: take an older checkpoint")
    found = checksum_of(path, path.stat().st_size)
    if found != checksum:
        raise DamagedCheckpoint(
            f"{path} is damaged (checksum {found:08x}, not {checksum:08x}): take an older checkpoint"
        )
