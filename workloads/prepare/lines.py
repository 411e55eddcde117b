"""Lines of raw text files, plain or compressed, in blocks that end at line ends; every file is read once."""

import hashlib
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import zstandard

from workloads import DataError

READ_BYTES = 1 << 18
_FEED_BYTES = 1 << 10
"""Compressed bytes that are unpacked at once: four of them can hold 128 KiB of zstd's text, so these hold 32 MiB."""
LONGEST_LINE_BYTES = 1 << 20

PARQUET_MAGIC = b"PAR1"
_PACKED = (b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")  # zip, bzip2, xz, 7-Zip
_COMPRESSIONS: dict[bytes, Callable[[], Any]] = {  # the decompressors have what `_decompressed` uses in common
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


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
        """Sum of the bytes as they lie on the disk; of the whole file once `blocks` is exhausted."""
        return self._digest.hexdigest()

    def blocks(self, block_bytes: int) -> Iterator[tuple[int, bytes]]:
        """All lines with plain line feeds, about `block_bytes` at a time: the first one's number, from 1, and text.

        Raises:
            DataError: the file is missing, a directory, empty, damaged, packed in another way, or not text.
        """
        first = 1
        parts: list[bytes] = []
        size = open_bytes = 0  # of all parts; of the line that is not ended yet
        for piece in self._text():
            end = piece.rfind(b"\n") + 1
            open_bytes = len(piece) - end if end else open_bytes + len(piece)
            if open_bytes > LONGEST_LINE_BYTES:
                line = first + sum(part.count(b"\n") for part in [*parts, piece])
                raise DataError(f"{self.path}:{line}: {LONGEST_LINE_BYTES} bytes without a line end; is it text?")
            parts.append(piece)
            size += len(piece)
            if end and size >= block_bytes:
                rest = piece[end:]
                text = b"".join([*parts[:-1], piece[:end]]).replace(b"\r\n", b"\n")
                yield first, text
                first += text.count(b"\n")
                parts, size = [rest], len(rest)
        if text := b"".join(parts):
            text += b"" if text.endswith(b"\n") else b"\n"
            yield first, text.replace(b"\r\n", b"\n")
        elif first == 1:
            raise DataError(f"{self.path} is empty: download it again")

    def _text(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as stream:
                raw = self._raw_blocks(stream)
                start = next(raw, b"")
                new = next((new for magic, new in _COMPRESSIONS.items() if start.startswith(magic)), None)
                whole = chain((start,), raw)
                for number, block in enumerate(whole if new is None else _decompressed(whole, new)):
                    if number == 0 and (block.startswith(_PACKED) or block[257:262] == b"ustar"):
                        raise DataError(f"{self.path} is an archive: unpack it first (plain, gzip and zstd are read)")
                    yield block
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
        except EOFError as error:
            raise DataError(f"{self.path} ends in the middle of its compressed data: download it again") from error
        except (zlib.error, zstandard.ZstdError) as error:
            raise DataError(f"{self.path} has damaged compressed data ({error}): download it again") from error

    def _raw_blocks(self, stream: BinaryIO) -> Iterator[bytes]:
        while block := stream.read(READ_BYTES):
            self.bytes_read += len(block)
            self._digest.update(block)
            yield block


def is_parquet(path: Path) -> bool:
    """Whether a regular file begins like a Parquet file; pipes are not touched."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _decompressed(blocks: Iterator[bytes], new: Callable[[], Any]) -> Iterator[bytes]:
    """Text of one or several compressed members, in pieces of moderate size; EOFError where the last one is cut off."""
    member, parts, size = new(), [b""], 0
    for block in blocks:
        for start in range(0, len(block), _FEED_BYTES):
            rest = block[start : start + _FEED_BYTES]
            while rest:
                if member.eof:
                    member = new()
                parts.append(member.decompress(rest))
                size += len(parts[-1])
                rest = member.unused_data
                if size >= READ_BYTES:
                    yield b"".join(parts)
                    parts, size = [], 0
    yield b"".join(parts)
    if not member.eof:
        raise EOFError


_Item = TypeVar("_Item")


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items in the same order, each made ahead of its turn; an error is raised in its place."""
    ready: queue.Queue[_Item | BaseException | None] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def read() -> None:
        try:
            for item in items:
                ready.put(item)
                if stop.is_set():
                    return
        except BaseException as error:  # raised where the item is wanted
            ready.put(error)
        else:
            ready.put(None)

    # A daemon: a reader that waits for a pipe must not keep an interrupted program alive.
    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            # Not an endless wait: polars' handler has the system take up such a wait again after a Ctrl-C.
            with suppress(queue.Empty):
                item = ready.get(timeout=0.1)
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    return
                yield item
    finally:
        stop.set()
        with suppress(queue.Empty):
            ready.get_nowait()  # makes room for an item that waits: the reader then sees that it is to stop
