"""Formats of raw files: their columns, what each may hold, what it becomes, and which rows train, validate and test.

A dataset of the user's own is described by a TOML file.
"""

import enum
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass

from workloads import DataError
from workloads.manifest import DATASET_NAME, FileRecord
from workloads.schema import AVAZU, CRITEO_1TB, CRITEO_KAGGLE, SCHEMAS, DatasetSchema, Split


class Kind(enum.StrEnum):
    """Kinds of columns, by their names in schema files and manifests."""

    LABEL = "label"
    DENSE_INTEGER = "dense_integer"
    DENSE_FLOAT = "dense_float"
    CATEGORICAL_INTEGER = "categorical_integer"
    CATEGORICAL_HEX = "categorical_hex"
    CATEGORICAL_STRING = "categorical_string"
    TIME = "time"
    IGNORED = "ignored"

    @property
    def dense(self) -> bool:
        """Whether the column is a dense feature."""
        return self in {Kind.DENSE_INTEGER, Kind.DENSE_FLOAT}

    @property
    def categorical(self) -> bool:
        """Whether the column is embedded."""
        return self in {Kind.CATEGORICAL_INTEGER, Kind.CATEGORICAL_HEX, Kind.CATEGORICAL_STRING}


TIME = r"-?[0-9]{1,19}|[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]{1,6})?"
"""The pattern of a time; an integer must fit into 64 bits, and the day and hour must exist."""
_INTEGER = "an integer of at most 18 digits, or nothing"
EXPECTED = {
    Kind.LABEL: "0 or 1",
    Kind.DENSE_INTEGER: _INTEGER,
    Kind.DENSE_FLOAT: "a finite 32-bit float, or nothing",
    Kind.CATEGORICAL_INTEGER: _INTEGER,
    Kind.CATEGORICAL_HEX: "at most 16 hex digits, or nothing",
    Kind.CATEGORICAL_STRING: "text in UTF-8, or nothing",
    Kind.TIME: "an integer of 64 bits or YYYY-MM-DD HH:MM:SS",
    Kind.IGNORED: "anything",
}
"""The text that is accepted, in words."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RawColumn:
    """A column of raw rows; `rows` are of its table when ids are hashed, as published or as a schema file says."""

    name: str
    kind: Kind
    rows: Annotated[int, Field(ge=1, lt=2**31)] | None = None


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Fractions:
    """Shares of the rows that train and validate, in time order; the rest tests."""

    train: float = Field(default=0.9, gt=0, lt=1)
    validation: float = Field(default=0.05, gt=0, lt=1)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class RawFormat:
    """Layout of the raw rows of a dataset, as a schema file describes it.

    Attributes:
        columns: All of them: in file order for text without a header, else found by name, in any order, among others.
        header: Whether the first line of every text file names the columns.
        quote: The character around fields that hold the separator; empty where quotes are plain characters.
        split: None for a published split.
        schema_file: The file that describes the dataset; None for a known one.

    Raises:
        ValueError: a rule beyond the single fields is broken.
    """

    name: Annotated[str, Field(pattern=DATASET_NAME)]
    columns: Annotated[tuple[RawColumn, ...], Strict(False)]
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    quote: Annotated[str, Field(max_length=1)] = '"'
    split: Fractions | None = Fractions()
    schema_file: FileRecord | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        kinds = [column.kind for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        dotted = [column.name for column in self.categorical if "." in column.name]
        sized = [c.name for c in self.columns if c.rows is not None and not c.kind.categorical]
        marks = self.separator + self.quote
        checks = {
            "a column has no name": "" in names,
            f"column {', '.join(twice)} is named twice": bool(twice),
            f"{kinds.count(Kind.LABEL)} columns of kind label, expected one": kinds.count(Kind.LABEL) != 1,
            f"{kinds.count(Kind.TIME)} columns of kind time, expected at most one": kinds.count(Kind.TIME) > 1,
            "no dense column: the model needs one": not self.dense,
            "no categorical column: nothing to embed": not self.categorical,
            f"column {', '.join(dotted)} has a dot in its name, which torch refuses for a table": bool(dotted),
            f"column {', '.join(sized)} is no table and cannot have rows": bool(sized),
            "train and validation leave nothing to test": (
                self.split is not None and self.split.train + self.split.validation >= 1
            ),
            "separator and quote must be two different ASCII characters, no letters, digits, + - . or line ends": (
                not marks.isascii() or len(set(marks)) < len(marks) or any(c.isalnum() or c in "+-.\r\n" for c in marks)
            ),
        }
        for problem, wrong in checks.items():
            if wrong:
                raise ValueError(problem)

    @cached_property
    def used(self) -> tuple[RawColumn, ...]:
        """Columns that are read, in order."""
        return tuple(column for column in self.columns if column.kind is not Kind.IGNORED)

    @cached_property
    def label(self) -> RawColumn:
        """The label."""
        return next(column for column in self.columns if column.kind is Kind.LABEL)

    @cached_property
    def dense(self) -> tuple[RawColumn, ...]:
        """Dense columns, in order."""
        return tuple(column for column in self.columns if column.kind.dense)

    @cached_property
    def categorical(self) -> tuple[RawColumn, ...]:
        """Embedded columns, in order."""
        return tuple(column for column in self.columns if column.kind.categorical)

    @cached_property
    def time(self) -> RawColumn | None:
        """The column that rows are ordered by, if one is."""
        return next((column for column in self.columns if column.kind is Kind.TIME), None)


def _criteo(schema: DatasetSchema) -> RawFormat:
    integers = (RawColumn(name, Kind.DENSE_INTEGER) for name in schema.dense)
    ids = (RawColumn(name, Kind.CATEGORICAL_HEX, rows) for name, rows in schema.categorical)
    columns = (RawColumn("label", Kind.LABEL), *integers, *ids)
    return RawFormat(schema.name, columns, separator="\t", header=False, quote="", split=None)


def _avazu() -> RawFormat:
    numbered = {"C1", "banner_pos", "device_type", "device_conn_type"}
    first = (RawColumn("id", Kind.IGNORED), RawColumn("click", Kind.LABEL), RawColumn("hour", Kind.IGNORED))
    ids = (
        RawColumn(name, Kind.CATEGORICAL_INTEGER if name in numbered else Kind.CATEGORICAL_HEX, rows)
        for name, rows in AVAZU.categorical
    )
    integers = (RawColumn(name, Kind.DENSE_INTEGER) for name in AVAZU.dense)
    return RawFormat(AVAZU.name, (*first, *ids, *integers), quote="", split=None)


FORMATS = {
    CRITEO_KAGGLE.name: _criteo(CRITEO_KAGGLE),
    AVAZU.name: _avazu(),
    CRITEO_1TB.name: _criteo(CRITEO_1TB),
}


def split_rows(
    dataset: str, file_rows: Sequence[int], *, fractions: Fractions | None = None
) -> tuple[dict[Split, int], str]:
    """Rows of the splits in time order, and the rule in words.

    Criteo Kaggle and Avazu as in CachedEmbedding (`recsys/datasets` @a2af3d7e), Criteo 1TB as in torchrec's DLRM.

    `file_rows` are of the raw files in time order; `fractions` of a dataset that has no published split.

    Raises:
        DataError: a split would be empty.
    """
    rows = sum(file_rows)
    after = "; first half of the rest, rounded up, validation, second half test"
    if fractions is not None:
        # the sum first: 0.7 + 0.3 of ten rows must not lose one to rounding
        train, seen = round(rows * fractions.train), round(rows * (fractions.train + fractions.validation))
        rule = f"the first {fractions.train:g} of the rows train, the next {fractions.validation:g} validate"
        after = ", the rest test"
    else:
        if dataset == CRITEO_KAGGLE.name:
            rest, rule = rows - 6 * (rows // 7), "six of seven equal chunks train"
        elif dataset == CRITEO_1TB.name and len(file_rows) > 1:
            rest, rule = file_rows[-1], "the last file plays day 23, the others train"
        elif dataset == CRITEO_1TB.name:
            rule = "a single file: its last 1/24 rows (at least 2) play day 23, the others train"
            rest = max(2, rows // 24)
        else:
            rest, rule = rows // 10, "all but the last tenth train"
        train, seen = rows - rest, rows - rest // 2
    splits = {Split.TRAIN: train, Split.VALIDATION: seen - train, Split.TEST: rows - seen}
    empty = [str(split) for split, count in splits.items() if count < 1]
    if empty:
        where = f", {file_rows[-1]} of them in the last file" if len(file_rows) > 1 else ""
        raise DataError(f"{rows} rows{where} leave no row for {' and '.join(empty)} ({rule}): give more rows")
    return splits, f"in time order; {rule}{after}"


def read_schema(path: Path) -> RawFormat:
    """The format that a schema file describes.

    Raises:
        DataError: the file cannot be read, is not TOML, or does not describe a dataset.
    """
    try:
        found = tomllib.loads(path.read_bytes().decode())
        raw = RawFormat(**found | {"columns": found.pop("column", ()), "schema_file": FileRecord.of(path)})
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        problem = ": ".join(filter(None, (str(path), where, first["msg"].removeprefix("Value error, "))))
        raise DataError(f"{problem}: put the schema file right") from error
    if raw.name in SCHEMAS:
        raise DataError(f"{path}: the name {raw.name} belongs to a known dataset: put the schema file right")
    return raw
