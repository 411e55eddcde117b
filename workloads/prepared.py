"""A prepared dataset as a workload: batches are rows of arrays that are mapped into memory."""

import hashlib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workloads import DataError
from workloads.batch import Batch, Split
from workloads.manifest import (
    COUNTS,
    MANIFEST,
    PARTS,
    TEMPORARY,
    FileRecord,
    Manifest,
    array_file,
    array_shape,
    prepare_command,
    read_manifest,
)
from workloads.schema import prefix_of

_BLOCK_ROWS = 1 << 16


class PreparedWorkload:
    """A prepared dataset cut to one batch size: a `Workload` whose batches are real rows in time order.

    Attributes:
        folder: Where it lies.
        manifest: Where the data came from and how they were prepared.
    """

    best_auroc: float | None = None

    def __init__(self, folder: Path, manifest: Manifest, *, batch_size: int, max_table_rows: int | None = None) -> None:
        """Map the arrays of a prepared dataset; `open` is the way in."""
        self.name = manifest.dataset
        self.manifest = manifest
        self.batch_size = batch_size
        self.tables = tuple((table.name, min(table.rows, max_table_rows or table.rows)) for table in manifest.tables)
        self.dense_columns = len(manifest.dense_columns)
        self.batch_lookups = batch_size * len(manifest.tables)
        self.folder = folder
        self._max_table_rows = max_table_rows
        self._arrays = {}
        for split, part in product(Split, PARTS):
            rows = manifest.splits[split].rows
            described = array_shape(part, rows, dense=self.dense_columns, tables=len(manifest.tables))
            self._arrays[split, part] = _map(folder, manifest, array_file(split, part), *described)
        rows = sum(table.rows for table in manifest.tables)
        self._counts = _map(folder, manifest, COUNTS, (rows,), np.dtype(np.int64))

    @classmethod
    def open(cls, path: Path, *, batch_size: int) -> Self:
        """Open the directory that holds manifest.json; sizes and headers are checked, contents by `verify` only.

        Raises:
            DataError: a file is missing or is not what the manifest says; the message has the command that makes it.
        """
        return cls(path, read_manifest(path), batch_size=batch_size)

    @property
    def digest(self) -> str:
        """sha256 of manifest.json, which itself holds the sums of all files: equal digests, equal data."""
        return hashlib.sha256((self.folder / MANIFEST).read_bytes()).hexdigest()

    def epoch_rows(self) -> int:
        return self.manifest.splits[Split.TRAIN].rows

    def batches(self, split: Split) -> int:
        return self.manifest.splits[split].rows // self.batch_size

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        if not 0 <= index < self.batches(split):
            raise IndexError(f"{self.name}: batch {index} of {self.batches(split)} in the {split} split")
        return self.rows(index * self.batch_size, (index + 1) * self.batch_size, split)

    def rows(self, start: int, stop: int, split: Split) -> Batch:
        """Rows `start` to `stop` of a split.

        Raises:
            DataError: an id is outside its table.
        """
        dense, labels = (self._arrays[split, part][start:stop] for part in ("dense", "labels"))
        ids = self._ids(start, stop, split)
        if self._max_table_rows is not None:
            ids %= np.array([count for _, count in self.tables])[:, None]
        return Batch.of(
            keys=[name for name, _ in self.tables],
            ids=ids.reshape(-1),
            lengths=np.ones_like(ids),
            dense=np.array(dense, dtype=np.float32),
            labels=labels.astype(np.float32),
        )

    def frequencies(self, prefix: float = 1.0) -> Mapping[str, Tensor]:
        counts: list[npt.NDArray[np.int64]]
        if prefix == 1:  # counted when the data were prepared
            stops = np.cumsum([table.rows for table in self.manifest.tables])
            counts = np.split(self._counts, stops[:-1])
        else:
            counts = self._counted(prefix_of(self.epoch_rows(), prefix))
        return {name: _folded(part, rows) for (name, rows), part in zip(self.tables, counts, strict=True)}

    def _counted(self, rows: int) -> list[npt.NDArray[np.int64]]:
        """Accesses by row of each table in the first rows of the training split."""
        counts = [np.zeros(table.rows, dtype=np.int64) for table in self.manifest.tables]
        for start in range(0, rows, _BLOCK_ROWS):
            ids = self._ids(start, min(start + _BLOCK_ROWS, rows), Split.TRAIN)
            for of_table, into in zip(ids, counts, strict=True):
                np.add.at(into, of_table, 1)
        return counts

    def _ids(self, start: int, stop: int, split: Split) -> npt.NDArray[np.int64]:
        """Ids of rows of a split as they were prepared, int64 `[tables, n]`.

        Raises:
            DataError: one is outside its table; the message has its place, and the command that makes the data again.
        """
        ids = np.ascontiguousarray(self._arrays[split, "ids"][start:stop].T, dtype=np.int64)
        rows = np.array([table.rows for table in self.manifest.tables])[:, None]
        if ids.min(initial=0) >= 0 and (ids < rows).all():
            return ids
        table, sample = np.argwhere((ids < 0) | (ids >= rows))[0]
        name, count = self.manifest.tables[table].name, self.manifest.tables[table].rows
        path = self.folder / array_file(split, "ids")
        problem = f"{path}, row {start + sample}: id {ids[table, sample]} is outside table {name} of {count} rows"
        raise DataError(f"{problem}. Make the data again: {prepare_command(self.folder, self.manifest)}")

    def shrunk(self, *, max_table_rows: int, batch_size: int) -> "PreparedWorkload":
        limit = max_table_rows if self._max_table_rows is None else min(max_table_rows, self._max_table_rows)
        return PreparedWorkload(self.folder, self.manifest, batch_size=batch_size, max_table_rows=limit)

    def verify(self) -> None:
        """Read every file and compare its sha256 with the manifest's; minutes on a full dataset.

        Raises:
            DataError: the files whose content changed, with the command that makes them again.
        """
        files = self.manifest.files
        changed = [str(self.folder / file.name) for file in files if FileRecord.of(self.folder / file.name) != file]
        if changed:
            remedy = prepare_command(self.folder, self.manifest)
            raise DataError(f"{', '.join(changed)} changed since preparation. Make the data again: {remedy}")


def find_prepared(data_dir: Path) -> dict[str, Path]:
    """Prepared datasets by name: `data_dir` itself, or those of its subdirectories that hold a manifest.

    One that is being prepared is left out.

    Raises:
        DataError: nothing is there, two directories hold the same dataset, or a manifest cannot be read.
    """
    try:
        inside = sorted(data_dir.iterdir()) if data_dir.is_dir() else []
        folders = [each for each in (data_dir, *inside) if TEMPORARY not in each.name and (each / MANIFEST).exists()]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be looked at ({error.strerror}): get the right to read it") from error
    if data_dir in folders:
        return {read_manifest(data_dir).dataset: data_dir}
    found: dict[str, Path] = {}
    for folder in folders:
        dataset = read_manifest(folder).dataset
        if dataset in found:
            raise DataError(f"{found[dataset]} and {folder} both hold {dataset}: keep one, or name its directory")
        found[dataset] = folder
    if not found:
        make = f"Make one: {prepare_command(data_dir / 'DATASET')}"
        raise DataError(f"{data_dir} holds no prepared dataset. {make}")
    return found


def _map(
    folder: Path, manifest: Manifest, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> npt.NDArray[np.generic]:
    """Map one file after checking its size, and that its header says what the manifest says."""
    path = folder / name
    remedy = f"Make the data again: {prepare_command(folder, manifest)}"
    size = next(record.bytes for record in manifest.files if record.name == name)
    try:
        found = path.stat().st_size
        array: npt.NDArray[np.generic] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}). {remedy}") from error
    if (found, array.shape, array.dtype) != (size, shape, dtype):
        holds = f"{found} bytes of {array.dtype} {array.shape}, expected {size} of {dtype} {shape}"
        raise DataError(f"{path} has {holds}. {remedy}")
    return array


def _folded(counts: npt.NDArray[np.int64], rows: int) -> Tensor:
    """Sums of counts over ids that are equal modulo `rows`, int64 `[rows]`."""
    padded = np.zeros(-(-len(counts) // rows) * rows, np.int64)
    padded[: len(counts)] = counts
    return torch.from_numpy(padded.reshape(-1, rows).sum(axis=0))
