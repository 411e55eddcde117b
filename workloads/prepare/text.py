"""Text files to typed columns: whole blocks at once where every line is good, line by line where one may not be."""

import csv
from collections.abc import Iterator

import polars as pl

from workloads import DataError
from workloads.prepare.formats import Kind, RawColumn, RawFormat
from workloads.prepare.lines import LONGEST_LINE_BYTES, RawFile, TextBlock, ahead
from workloads.prepare.values import RowChecks, refusals, typed

# So much text around a bad line is read line by line.
SLOW_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# polars drops a byte order mark, and unpacks what begins like gzip, zlib (three levels) or zstd.
_TAKEN_FOR_OTHERS = (_BYTE_ORDER_MARK, b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")
csv.field_size_limit(LONGEST_LINE_BYTES)


class _BadLine(ValueError):
    """A line is malformed; the message says why."""


class TextRows:
    """Parses one text file.

    The typed frames that it gives have the used columns of the format by name: labels uint8, dense columns int64 or
    float32 with 0 for an empty field, ids uint64 with null for a missing one (integers in two's complement, strings
    as their 64-bit hash), time int64.

    Bad rows are counted in `checks` and left out.
    """

    def __init__(self, raw: RawFormat, file: RawFile, checks: RowChecks) -> None:
        self._raw, self._file, self._checks = raw, file, checks
        self._columns = raw.columns  # in the order of this file
        self._separator, self._quote = raw.separator.encode(), raw.quote.encode()

    def frames(self, block_bytes: int) -> Iterator[pl.DataFrame]:
        """The good rows, in order, about `block_bytes` of text at a time.

        Raises:
            DataError: the file cannot be read, lacks its header, is not in time order, or has more bad rows than
                allowed.
        """
        for found in ahead(self._file.blocks(block_bytes)):
            block = found
            if block.first == 1 and self._raw.header:
                header, _, text = block.text.partition(b"\n")
                self._take_header(header.removesuffix(b"\r").removeprefix(_BYTE_ORDER_MARK))
                block = TextBlock(2, text, block.line_end)
            if block.text:
                yield self._typed(block)

    @property
    def _used(self) -> list[RawColumn]:
        return [column for column in self._columns if column.kind is not Kind.IGNORED]

    def _typed(self, block: TextBlock) -> pl.DataFrame:
        frame = self._fast(block)
        if frame is not None:
            return self._checks.good(frame, {}, first=block.first)
        parts = list(_cut(block)) if len(block.text) > SLOW_BYTES else [block]
        return self._slow(block) if len(parts) == 1 else pl.concat([self._typed(part) for part in parts])

    def _fast(self, block: TextBlock) -> pl.DataFrame | None:
        """The typed rows of a block in which every line is good; None where one may not be."""
        text = _with_line_feeds(block)
        if text is None or text.startswith(_TAKEN_FOR_OTHERS) or self._quoted(text):
            return None
        lines = text.count(b"\n")  # polars fills up short ones
        if text.count(self._separator) != lines * (len(self._columns) - 1):
            return None
        try:
            frame = pl.read_csv(
                text,
                has_header=False,
                separator=self._raw.separator,
                quote_char=None,
                schema={column.name: pl.String for column in self._columns},
            )
        except pl.exceptions.PolarsError:
            return None
        if frame.height != lines:
            return None
        found, good = typed(frame, self._used, plus=b"+" in text)
        return found if all(column.all() for column in good) else None

    def _slow(self, block: TextBlock) -> pl.DataFrame:
        rows: list[list[bytes]] = []
        malformed: dict[int, str] = {}
        positions = [i for i, column in enumerate(self._columns) if column.kind is not Kind.IGNORED]
        for number, line in enumerate(block.text.removesuffix(b"\n").split(b"\n")):
            try:
                fields = self._fields(line, block.line_end)
            except _BadLine as problem:
                malformed[number] = str(problem)
                fields = [b""] * len(self._columns)
            rows.append([fields[position] for position in positions])
        schema = {column.name: pl.String for column in self._used}
        decoded = [[field.decode(errors="replace") for field in row] for row in rows]
        texts = pl.DataFrame(decoded, schema=schema, orient="row").with_columns(pl.all().replace("", None))
        frame, good = typed(texts, self._used)
        return self._checks.good(frame, refusals(self._used, rows, good) | malformed, first=block.first)

    def _fields(self, line: bytes, line_end: bytes) -> list[bytes]:
        """The fields of a line, as many as there are columns."""
        content = line.removesuffix(b"\r")
        if line.endswith(b"\r") != (line_end == b"\r\n") or b"\r" in content:
            ends = {b"\n": "a line feed", b"\r\n": "a carriage return and a line feed"}
            raise _BadLine(f"mixed line ends: this line does not end like the first one, with {ends[line_end]} alone")
        fields = self._split(content)
        expected = len(self._columns)
        if len(fields) != expected:
            raise _BadLine(f"{len(fields)} columns found, expected {expected} separated by {self._raw.separator!r}")
        if self._raw.header and fields == [column.name.encode() for column in self._columns]:
            raise _BadLine("the header again: were files joined? Leave out all headers but the first")
        return fields

    def _quoted(self, text: bytes) -> bool:
        return self._quote != b"" and self._quote in text

    def _split(self, line: bytes) -> list[bytes]:
        """The fields of a line, some of which may be in quotes."""
        if not self._quoted(line):
            return line.split(self._separator)
        text = [line.decode("latin-1")]  # which maps every byte to one character and back
        try:
            fields = next(csv.reader(text, delimiter=self._raw.separator, quotechar=self._raw.quote, strict=True))
        except csv.Error as error:
            problem = f"quotes that do not pair up in this line ({error}); a field may not run over a line end"
            raise _BadLine(problem) from error
        return [field.encode("latin-1") for field in fields]

    def _take_header(self, line: bytes) -> None:
        """Check the first line, which names the columns, and put them in the order of this file."""
        try:
            names = [field.decode(errors="replace") for field in self._split(line)]
        except _BadLine as problem:
            raise DataError(f"{self._file.path}:1: {problem}: put the header right") from problem
        missing = [column.name for column in self._raw.used if column.name not in names]
        if missing:
            raise DataError(
                f"{self._file.path}:1: no column {', '.join(missing)} among {', '.join(names)[:300]} "
                f"(separated by {self._raw.separator!r}): put the header, or the schema file, right"
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{self._file.path}:1: the header names {', '.join(twice)} twice: rename one")
        kinds = {column.name: column for column in self._raw.columns}
        self._columns = tuple(kinds.get(name, RawColumn(name, Kind.IGNORED)) for name in names)


def _with_line_feeds(block: TextBlock) -> bytes | None:
    """The text with plain line feeds, or None where line ends are mixed."""
    if block.line_end == b"\n":
        return None if b"\r" in block.text else block.text
    ends = block.text.count(b"\r\n")
    mixed = not block.text.count(b"\r") == ends == block.text.count(b"\n")
    return None if mixed else block.text.replace(b"\r\n", b"\n")


def _cut(block: TextBlock) -> Iterator[TextBlock]:
    """A block in parts of about `SLOW_BYTES / 2`, cut at line ends."""
    start, first = 0, block.first
    while start < len(block.text):
        end = block.text.find(b"\n", min(start + SLOW_BYTES // 2, len(block.text) - 1)) + 1
        text = block.text[start:end]
        yield TextBlock(first, text, block.line_end)
        first += text.count(b"\n")
        start = end
