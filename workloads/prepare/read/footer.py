"""Rows of each row group of a Parquet file, which polars does not tell: read from the footer.

The footer is Thrift's compact protocol before four bytes with its length and the magic; row groups are field 4 of
`FileMetaData`, their rows field 3 of `RowGroup` (apache/parquet-format `parquet.thrift`, apache/thrift
`doc/specs/thrift-compact-protocol.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workloads.errors import DataError

_INTEGER, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 6, 7, 8, 9, 10, 11, 12


def row_group_rows(path: Path) -> list[int]:
    """Rows of each row group, from the footer.

    Raises:
        DataError: the footer is damaged.
    """
    with path.open("rb") as stream:
        size = stream.seek(-8, 2)
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(0, size - length))
        footer = _Compact(stream.read(length))
    groups: list[int] = []
    try:
        for number, kind in footer.fields():
            if number == 4 and kind == _LIST:
                count, _ = footer.list_header()
                groups += [_rows_of_group(footer) for _ in range(count)]
            else:
                footer.skip(kind)
    except (IndexError, RecursionError) as error:
        raise DataError(f"{path}: the row groups in the footer cannot be read: write or download it again") from error
    return groups


def _rows_of_group(footer: _Compact) -> int:
    rows = 0
    for number, kind in footer.fields():
        if number == 3 and kind == _INTEGER:
            rows = footer.integer()
        else:
            footer.skip(kind)
    return rows


class _Compact:
    """Reads values of Thrift's compact protocol one after another; IndexError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of every field of a struct; its value must be read or skipped before the next."""
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def list_header(self) -> tuple[int, int]:
        """Length and type of the elements of a list or set."""
        head = self._byte()
        return (self._unsigned() if head >> 4 == 15 else head >> 4), head & 15

    def integer(self) -> int:
        """A signed integer of any width but one byte."""
        word = self._unsigned()
        return (word >> 1) ^ -(word & 1)

    def skip(self, kind: int, *, element: bool = False) -> None:
        """Pass over a value; as a field, a boolean is in its type, as an element it has a byte."""
        if kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in {_LIST, _SET}:
            count, inner = self.list_header()
            for _ in range(count):
                self.skip(inner, element=True)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self.skip(kinds >> 4, element=True)
                self.skip(kinds & 15, element=True)
        elif kind == _BINARY:
            length = self._unsigned()
            self._at += length
        elif kind == _DOUBLE:
            self._at += 8
        elif kind > 3:
            self._unsigned()
        elif kind == 3 or element:
            self._byte()

    def _unsigned(self) -> int:
        word, shift = 0, 0
        while (byte := self._byte()) & 128:
            word |= (byte & 127) << shift
            shift += 7
        return word | byte << shift

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]
