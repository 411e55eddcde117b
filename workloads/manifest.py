"""manifest.json of a prepared dataset: tables, splits and settings, and the checksums of all files read and written."""

import enum
import hashlib
import shlex
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workloads import DataError
from workloads.schema import DATASETS, Split

MANIFEST = "manifest.json"
COUNTS = "counts.npy"
DATASET_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
TEMPORARY = ".partial-"  # in the name of a directory that is still being written


def array_file(split: Split, part: str) -> str:
    """Name of the file that holds the `dense`, `ids` or `labels` of a split."""
    return f"{split}_{part}.npy"


PARTS = ("dense", "ids", "labels")
DATA_FILES = (*(array_file(split, part) for split in Split for part in PARTS), COUNTS)


class IdRule(enum.StrEnum):
    """Rules by which ids become rows of a table."""

    RANK = "rank"
    HASHED = "hashed"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRecord(_Record):
    """A file by its content."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """The record of a file, all of which is read."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRecord(name=path.name, bytes=path.stat().st_size, sha256=digest)


class InputRecord(FileRecord):
    """A raw file, with the rows taken from it."""

    rows: int


class ColumnRecord(_Record):
    """A column of the raw files that is used, with what it holds: a value of `prepare.formats.Kind`."""

    name: str
    kind: str


class TableRecord(_Record):
    """A table, and the distinct ids of the training split that share its rows."""

    name: str
    rows: int = Field(ge=1)
    training_ids: int = Field(ge=0)


class SplitRecord(_Record):
    """A split; `ctr` is the share of positive labels."""

    rows: int = Field(ge=1)
    positives: int
    ctr: float


class Settings(_Record):
    """Choices of the user who prepares a dataset.

    Attributes:
        min_count: Ids seen less often than this in the training split share row 0, when ids are ranked.
        skip_bad_rows: Malformed rows that may be left out.
        ids: Rows by rank of frequency, or ids modulo the size of the table.
        table_rows: Largest size of a table of hashed ids; None for the sizes that the dataset has.
    """

    min_count: int = Field(default=1, ge=1)
    skip_bad_rows: int = Field(default=0, ge=0)
    ids: IdRule = IdRule.RANK
    table_rows: int | None = Field(default=None, ge=1, lt=2**31)


class Manifest(_Record):
    """The content of manifest.json; nothing in it depends on when or where it was written.

    Attributes:
        columns: All raw columns that were used, in order.
        tables: Categorical columns, in order of the ids.
        id_rule: How ids became rows, and which row unknown ids get.
        integer_minimum: Smallest integer of the training split; None where no dense column holds integers.
        schema_file: The file that described the columns; None for a known dataset.
        inputs: Raw files, in time order; `files` are the arrays.
    """

    version: Literal[2] = 2
    dataset: str = Field(pattern=DATASET_NAME)
    label: str
    columns: tuple[ColumnRecord, ...]
    tables: tuple[TableRecord, ...] = Field(min_length=1)
    id_rule: str
    dense_columns: tuple[str, ...]
    dense_rule: str
    integer_minimum: int | None
    splits: dict[str, SplitRecord]
    split_rule: str
    skipped_rows: int
    settings: Settings
    schema_file: FileRecord | None = None
    inputs: tuple[InputRecord, ...]
    files: tuple[FileRecord, ...]

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def array_shape(part: str, rows: int, *, dense: int, tables: int) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and dtype of one of `PARTS`, given the rows of its split and the columns of the dataset."""
    widths = {"dense": (np.float32, (dense,)), "ids": (np.int32, (tables,)), "labels": (np.uint8, ())}
    dtype, width = widths[part]
    return (rows, *width), np.dtype(dtype)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared dataset.

    Raises:
        DataError: manifest.json is missing, damaged, or of another version.
    """
    path, command = folder / MANIFEST, prepare_command(folder)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Make it: {command}") from error
    again = f"Make the data again: {command}"
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(f"{path} is of another version, or damaged ({where}: {first['msg']}). {again}") from error
    if {file.name for file in manifest.files} != set(DATA_FILES) or set(manifest.splits) != set(Split):
        raise DataError(f"{path} does not name the files and splits of a dataset. {again}")
    return manifest


def prepare_command(folder: Path, manifest: Manifest | None = None) -> str:
    """The command that makes the prepared dataset in `folder`, raw files by name where a manifest knows them."""
    folder = folder if folder.name not in {"", ".."} else folder.resolve()  # of `.` too, the parent gets the new one
    source, inputs, settings = [folder.name if folder.name in DATASETS else "DATASET"], ["FILE..."], Settings()
    if manifest is not None:
        described = manifest.schema_file
        source = [manifest.dataset] if described is None else ["--schema", described.name]
        inputs, settings = [file.name for file in manifest.inputs], manifest.settings
    words = ["python", "-m", "workloads", "prepare", *source, "--input", *inputs, "--out", str(folder.parent)]
    for name, value in settings.model_dump(exclude_defaults=True).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    renamed = manifest is not None and folder.name != manifest.dataset  # there may be a sound one of the name
    words += ["--overwrite"] * (folder.exists() and not renamed)
    return shlex.join(words)
