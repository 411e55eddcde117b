"""What a prepared dataset says of itself: tables, splits, settings, and the sums of what went in and came out."""

from __future__ import annotations

import hashlib
import io
import shlex
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from workloads.batch import Split
from workloads.errors import DataError
from workloads.schema import SCHEMAS

VERSION = 1
MANIFEST = "manifest.json"
COUNTS = "counts.npy"
TEMPORARY = ".partial-"  # in the name of a directory that is still being written


def array_file(split: Split, part: str) -> str:
    """Name of the file that holds the `dense`, `ids` or `labels` of a split."""
    return f"{split}_{part}.npy"


DATA_FILES = (*(array_file(split, part) for split in Split for part in ("dense", "ids", "labels")), COUNTS)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Record):
    """A file by its content."""

    name: str
    bytes: int
    sha256: str


class InputRecord(FileRecord):
    """A raw file, with the rows taken from it."""

    rows: int


class TableRecord(_Record):
    """A table: row 0 and one row for each of the kept among the `training_ids` distinct ids of the training split."""

    name: str
    rows: int
    training_ids: int


class SplitRecord(_Record):
    """A split; `ctr` is the share of positive labels."""

    rows: int
    positives: int
    ctr: float


class Settings(_Record):
    """What the user may choose.

    Attributes:
        min_count: Ids seen less often than this in the training split share row 0.
        skip_bad_rows: Malformed rows that may be left out.
    """

    min_count: int = 1
    skip_bad_rows: int = 0


class Manifest(_Record):
    """The content of manifest.json; nothing in it depends on when or where it was written."""

    version: int = VERSION
    dataset: str
    tables: tuple[TableRecord, ...]
    dense_columns: tuple[str, ...]
    integer_minimum: int
    splits: dict[str, SplitRecord]
    split_rule: str
    skipped_rows: int
    settings: Settings
    inputs: tuple[InputRecord, ...]
    files: tuple[FileRecord, ...]

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def array(self, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        """Shape and dtype that one of `DATA_FILES` must have."""
        if name == COUNTS:
            return (sum(table.rows for table in self.tables),), np.dtype(np.int64)
        split, part = name.removesuffix(".npy").split("_")
        rows = self.splits[split].rows
        if part == "dense":
            return (rows, len(self.dense_columns)), np.dtype(np.float32)
        if part == "ids":
            return (rows, len(self.tables)), np.dtype(np.int32)
        return (rows,), np.dtype(np.uint8)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared dataset.

    Raises:
        DataError: manifest.json is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Make it: {prepare_command(folder)}") from error
    try:
        version = _Version.model_validate_json(text).version
        if version != VERSION:
            remedy = f"Make the data again: {prepare_command(folder)}"
            raise DataError(f"{path} has version {version}; this program reads version {VERSION}. {remedy}")
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        problem = f"{path} is damaged ({where}: {first['msg']})"
        raise DataError(f"{problem}. Make the data again: {prepare_command(folder)}") from error
    missing = set(DATA_FILES) - {file.name for file in manifest.files} | set(Split) - set(manifest.splits)
    if missing or manifest.dataset not in SCHEMAS:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"names the unknown dataset {manifest.dataset}"
        raise DataError(f"{path} {what}. Make the data again: {prepare_command(folder)}")
    return manifest


def prepare_command(folder: Path, manifest: Manifest | None = None) -> str:
    """The command that makes the prepared dataset in `folder`, raw files by name where a manifest knows them."""
    if manifest is not None:
        dataset, inputs, settings = manifest.dataset, [file.name for file in manifest.inputs], manifest.settings
    else:
        dataset, inputs, settings = folder.name if folder.name in SCHEMAS else "DATASET", ["FILE..."], Settings()
    words = ["python", "-m", "workloads", "prepare", dataset, "--input", *inputs, "--out", str(folder.parent)]
    words += ["--min-count", str(settings.min_count)] * (settings.min_count != 1)
    words += ["--skip-bad-rows", str(settings.skip_bad_rows)] * (settings.skip_bad_rows != 0)
    words += ["--overwrite"] * folder.exists()
    return shlex.join(words)


class _Version(BaseModel):
    version: int


class NpyWriter:
    """Writes an .npy file of known shape from blocks of its rows and sums it on the way.

    Plain writes, not a memory map: a full disk then is an error that can be handled, not a signal that kills.
    """

    def __init__(self, path: Path, *, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._path = path
        self._dtype = dtype
        self._digest = hashlib.sha256()
        self._stream = path.open("wb")
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(dtype)
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        self._bytes = 0
        self._write(header.getvalue())

    def append(self, block: npt.NDArray[np.generic]) -> None:
        """Append rows; the dtype must be the file's."""
        if block.dtype != self._dtype:
            raise TypeError(f"{self._path.name}: {block.dtype} rows for a {self._dtype} file")
        self._write(np.ascontiguousarray(block).data)

    def record(self) -> FileRecord:
        """The finished file."""
        return FileRecord(name=self._path.name, bytes=self._bytes, sha256=self._digest.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self._bytes += len(data) if isinstance(data, bytes) else data.nbytes

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
