"""A dataset of the user's own: a TOML file that says what the columns of Parquet or CSV files hold."""

import hashlib
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workloads.errors import DataError
from workloads.manifest import DATASET_NAME, FileRecord
from workloads.prepare.formats import Column, Fractions, Kind, RawFormat
from workloads.schema import SCHEMAS


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=DATASET_NAME)
    column: list[Column] = Field(min_length=1)
    separator: str = Field(default=",", min_length=1, max_length=1)
    header: bool = True
    quote: str = Field(default='"', max_length=1)
    split: Fractions = Fractions()


def read_schema(path: Path) -> tuple[RawFormat, FileRecord]:
    """The format that a schema file describes, and the file by its content.

    Raises:
        DataError: the file cannot be read, is not TOML, or does not describe a dataset.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        schema = _Schema.model_validate(tomllib.loads(content.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"]) or "the file"
        raise DataError(f"{path}: {where}: {first['msg']}: put the schema file right") from error
    problem = _problem(schema)
    if problem:
        raise DataError(f"{path}: {problem}: put the schema file right")
    raw = RawFormat(
        dataset=schema.name,
        columns=tuple(schema.column),
        separator=schema.separator.encode(),
        header=schema.header,
        named=schema.header,
        quote=schema.quote.encode() or None,
        fractions=schema.split,
    )
    return raw, FileRecord(name=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _problem(schema: _Schema) -> str:
    """What is wrong beyond the single fields."""
    names = [column.name for column in schema.column]
    kinds = [column.kind for column in schema.column]
    twice = sorted({name for name in names if names.count(name) > 1})
    dotted = [c.name for c in schema.column if c.kind.categorical and "." in c.name]
    sized = [c.name for c in schema.column if c.rows is not None and not c.kind.categorical]
    marks = schema.separator + schema.quote
    checks = {
        f"the name {schema.name} belongs to a known dataset": schema.name in SCHEMAS,
        "a column has no name": "" in names,
        f"column {', '.join(twice)} is named twice": bool(twice),
        f"{kinds.count(Kind.LABEL)} columns of kind label, expected one": kinds.count(Kind.LABEL) != 1,
        f"{kinds.count(Kind.TIME)} columns of kind time, expected at most one": kinds.count(Kind.TIME) > 1,
        "no dense column: the model needs one": not any(kind.dense for kind in kinds),
        "no categorical column: nothing to embed": not any(kind.categorical for kind in kinds),
        f"column {', '.join(dotted)} has a dot in its name, which torch refuses for a table": bool(dotted),
        f"column {', '.join(sized)} is no table and cannot have rows": bool(sized),
        "train and validation leave nothing to test": schema.split.train + schema.split.validation >= 1,
        "separator and quote must be two different ASCII characters other than letters, digits, + - . and line ends": (
            not marks.isascii() or len(set(marks)) < len(marks) or any(c.isalnum() or c in "+-.\r\n" for c in marks)
        ),
    }
    return next((problem for problem, wrong in checks.items() if wrong), "")
