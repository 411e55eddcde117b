"""Raw click logs: opening files by their content, and rows parsed with the position of whatever is wrong."""

from __future__ import annotations

import enum
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import zstandard

from workloads.errors import DataError
from workloads.schema import AVAZU, CRITEO_1TB, CRITEO_KAGGLE, DatasetSchema

BLOCK_BYTES = 1 << 18
LONGEST_LINE_BYTES = 1 << 20
LOGGED_BAD_ROWS = 10

# An id as read: all 64-bit values are legal ids, so that "missing" needs a flag of its own.
RAW_ID = np.dtype([("value", "<u8"), ("missing", "?")])
RawIds = npt.NDArray[np.void]

_LOG = logging.getLogger(__name__)
_PACKED_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"PAR1": "a Parquet file",
}


class _Decompressor(Protocol):
    """What the objects of zlib and zstandard share."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


_COMPRESSIONS: dict[bytes, Callable[[], _Decompressor]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of a file, without their line ends; `first` counts from 1."""

    first: int
    lines: list[bytes]


class RawFile:
    """A text file, plain or compressed with gzip or zstd, read once from start to end.

    Attributes:
        path: Where it lies.
        bytes_read: Bytes taken from the disk so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Sum of the bytes as they lie on the disk; of the whole file once `chunks` is exhausted."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[Lines]:
        """All lines, some thousands at a time.

        Raises:
            DataError: the file is missing, a directory, empty, damaged, packed in another way, or not text.
        """
        first, tail = 1, b""
        for block in self._text_blocks():
            text = tail + block
            end = text.rfind(b"\n") + 1
            tail = text[end:]
            if len(tail) > LONGEST_LINE_BYTES:
                line = first + text.count(b"\n")
                raise DataError(f"{self.path}:{line}: {LONGEST_LINE_BYTES} bytes without a line end; is it text?")
            if end:
                lines = text[: end - 1].split(b"\n")
                yield Lines(first, lines)
                first += len(lines)
        if tail:
            yield Lines(first, [tail])
        elif first == 1:
            raise DataError(f"{self.path} is empty: download it again")

    def _text_blocks(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as stream:
                raw = self._raw_blocks(stream)
                start = next(raw, b"")
                for magic, what in _PACKED_FORMATS.items():
                    if start.startswith(magic):
                        raise DataError(f"{self.path} is {what}: unpack it first (plain, gzip and zstd are read)")
                new = next((new for magic, new in _COMPRESSIONS.items() if start.startswith(magic)), None)
                blocks = _chained(start, raw) if new is None else _decompressed(_chained(start, raw), new)
                for block in blocks:
                    if block[257:262] == b"ustar":  # no line of these formats holds a word there
                        raise DataError(f"{self.path} is a tar archive: unpack it first (tar -xf {self.path})")
                    yield block
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
        except EOFError as error:
            raise DataError(f"{self.path} ends in the middle of its compressed data: download it again") from error
        except (zlib.error, zstandard.ZstdError) as error:
            raise DataError(f"{self.path} has damaged compressed data ({error}): download it again") from error

    def _raw_blocks(self, stream: BinaryIO) -> Iterator[bytes]:
        while block := stream.read(BLOCK_BYTES):
            self.bytes_read += len(block)
            self._digest.update(block)
            yield block


def _chained(start: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield start
    yield from rest


def _decompressed(blocks: Iterator[bytes], new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Text of one or several compressed members; EOFError where the last one is cut off."""
    member = new()
    for compressed in blocks:
        block = compressed
        while block:
            if member.eof:
                member = new()
            yield member.decompress(block)
            block = member.unused_data
    if not member.eof:
        raise EOFError


class Kind(enum.Enum):
    """What a column may hold: a pattern, and the same in words."""

    LABEL = (rb"[01]", "0 or 1")
    INTEGER = (rb"(?:-?[0-9]{1,18})?", "an integer of at most 18 digits, or nothing")
    HEX = (rb"[0-9a-fA-F]{0,16}", "at most 16 hex digits, or nothing")
    IGNORED = (rb"[^,]*", "anything")

    @property
    def pattern(self) -> bytes:
        """Regular expression without groups."""
        return self.value[0]

    @property
    def expected(self) -> str:
        """The pattern in words."""
        return self.value[1]


@dataclass(frozen=True)
class Rows:
    """Parsed rows.

    Attributes:
        labels: uint8 `[rows]`, 0 or 1.
        dense: int64 `[rows, dense columns]`; an empty field is 0.
        ids: `RAW_ID` `[tables, rows]`: hex fields by their number, decimal ones by theirs in two's complement.
    """

    labels: npt.NDArray[np.uint8]
    dense: npt.NDArray[np.int64]
    ids: RawIds

    def __len__(self) -> int:
        return len(self.labels)


class BadRows:
    """Counts rows left out, and stops at the first one too many."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.count = 0

    def add(self, problem: str) -> None:
        """Count one bad row; DataError with its position when no more are allowed."""
        if self.count == self.allowed:
            allowed = f" (bad row {self.count + 1}; --skip-bad-rows allows {self.allowed})" if self.allowed else ""
            raise DataError(f"{problem}{allowed}. Mend the row, or leave such rows out with --skip-bad-rows N")
        self.count += 1
        if self.count <= LOGGED_BAD_ROWS:
            _LOG.warning("left out %s", problem)


@dataclass(frozen=True)
class RawFormat:
    """How the rows of a dataset are written.

    Attributes:
        schema: The dataset.
        columns: Names and kinds of all columns, in file order.
        label: Name of the label column.
        separator: One byte.
        header: First line of every file, or None.
    """

    schema: DatasetSchema
    columns: tuple[tuple[str, Kind], ...]
    label: str
    separator: bytes
    header: bytes | None = None

    def parse(self, file: RawFile, *, bad: BadRows) -> Iterator[Rows]:
        """The good rows of a file, in order, some thousands at a time.

        Raises:
            DataError: the file cannot be read, lacks its header, or has more bad rows than allowed.
        """
        for chunk in file.chunks():
            lines, first = chunk.lines, chunk.first
            if first == 1 and self.header is not None:
                self._check_header(file.path, lines[0])
                lines, first = lines[1:], 2
            matches = [self._row.fullmatch(line) for line in lines]
            if None in matches:
                for number, match in enumerate(matches):
                    if match is None:
                        bad.add(f"{file.path}:{first + number}: {self._problem(lines[number])}")
            fields = [match.groups() for match in matches if match]
            if fields:
                yield self._converted(fields)

    @cached_property
    def _row(self) -> re.Pattern[bytes]:
        """A whole row, with a group for every column that is used."""
        patterns = (k.pattern if k is Kind.IGNORED else b"(" + k.pattern + b")" for _, k in self.columns)
        return re.compile(self.separator.join(patterns) + rb"\r?")

    def _converted(self, rows: list[tuple[bytes, ...]]) -> Rows:
        used = [(name, kind) for name, kind in self.columns if kind is not Kind.IGNORED]
        kinds = dict(used)
        columns = dict(zip(kinds, zip(*rows, strict=True), strict=True))
        dense = np.empty((len(rows), len(self.schema.dense)), np.int64)
        for position, name in enumerate(self.schema.dense):
            dense[:, position] = [int(field or b"0") for field in columns[name]]
        ids = np.empty((len(self.schema.categorical), len(rows)), RAW_ID)
        for position, (name, _) in enumerate(self.schema.categorical):
            fields = columns[name]
            if kinds[name] is Kind.HEX:
                ids["value"][position] = np.array([int(field or b"0", 16) for field in fields], np.uint64)
            else:
                ids["value"][position] = np.array([int(field or b"0") for field in fields], np.int64).view(np.uint64)
            ids["missing"][position] = [not field for field in fields]
        labels = np.array([field == b"1" for field in columns[self.label]], np.uint8)
        return Rows(labels=labels, dense=dense, ids=ids)

    def _problem(self, line: bytes) -> str:
        """What is wrong with a row that the pattern of a whole row refused."""
        fields = line.removesuffix(b"\r").split(self.separator)
        separator = {b"\t": "tabs", b",": "commas"}[self.separator]
        if len(fields) != len(self.columns):
            return f"{len(fields)} columns found, expected {len(self.columns)} separated by {separator}"
        for (name, kind), field in zip(self.columns, fields, strict=True):
            if not re.fullmatch(kind.pattern, field):
                note = "" if field.isascii() else " (not plain text: is the file packed or in another encoding?)"
                return f"column {name}: found {_shown(field)}{note}, expected {kind.expected}"
        raise AssertionError(f"the pattern of a row and those of its columns disagree on {line!r}")

    def _check_header(self, path: Path, line: bytes) -> None:
        if line.removesuffix(b"\r") != self.header:
            header = ",".join(name for name, _ in self.columns)
            raise DataError(f"{path}:1: found {_shown(line)}, expected the header; make this the first line: {header}")


def _shown(field: bytes) -> str:
    return repr(field[:60])[1:] + ("..." if len(field) > 60 else "")


def _criteo(schema: DatasetSchema) -> RawFormat:
    integers = tuple((name, Kind.INTEGER) for name in schema.dense)
    categories = tuple((name, Kind.HEX) for name, _ in schema.categorical)
    return RawFormat(schema, (("label", Kind.LABEL), *integers, *categories), label="label", separator=b"\t")


def _avazu() -> RawFormat:
    numbered = {"C1", "banner_pos", "device_type", "device_conn_type"}
    categories = tuple((name, Kind.INTEGER if name in numbered else Kind.HEX) for name, _ in AVAZU.categorical)
    columns = (
        *(("id", Kind.IGNORED), ("click", Kind.LABEL), ("hour", Kind.IGNORED)),
        *categories,
        *((name, Kind.INTEGER) for name in AVAZU.dense),
    )
    header = ",".join(name for name, _ in columns).encode()
    return RawFormat(AVAZU, columns, label="click", separator=b",", header=header)


FORMATS = {
    CRITEO_KAGGLE.name: _criteo(CRITEO_KAGGLE),
    CRITEO_1TB.name: _criteo(CRITEO_1TB),
    AVAZU.name: _avazu(),
}
