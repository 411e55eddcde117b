"""The memory bound of a preparation, and the sizes that follow from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from pydantic import ByteSize, TypeAdapter, ValidationError

from workloads.errors import DataError

# Interpreter, libraries and what the allocators keep: measured at 150 MiB, rounded up.
BASE_BYTES = 256 << 20
SMALLEST_BYTES = 512 << 20
LARGEST_BLOCK_BYTES = 64 << 20
# A block of text while it is parsed: its frame of strings, the numbers, and the next block being read.
BYTES_PER_TEXT_BYTE = 24
# One distinct id while sorted lists of ids are merged: value, count and first row, in and out of a hash table.
BYTES_PER_MERGED_ID = 600
# One id of a vocabulary while it is ranked or looked up: sort keys, their permutation, and the rows in two orders.
BYTES_PER_RANKED_ID = 240


@dataclass(frozen=True)
class Memory:
    """What a preparation may take, whatever the size of its input.

    Attributes:
        bytes: Peak resident memory of the process (of each worker process on a cluster).
        parts: Tasks that share it at the same time.
    """

    bytes: int = 8 * 10**9
    parts: int = 1

    def __post_init__(self) -> None:
        if self.bytes < SMALLEST_BYTES:
            raise DataError(f"--memory must be at least {SMALLEST_BYTES >> 20}MiB: the program alone takes half of it")

    @classmethod
    def parse(cls, text: str) -> Memory:
        """A size such as `8GB`, `512MiB` or a number of bytes."""
        try:
            return cls(TypeAdapter(ByteSize).validate_python(text.strip()))
        except ValidationError as error:
            raise DataError(f"--memory {text!r} is not a size: write it like 8GB or 512MiB") from error

    def divided(self, parts: int) -> Memory:
        """The share of each of several tasks that run at the same time."""
        return replace(self, parts=self.parts * parts)

    @property
    def text_block_bytes(self) -> int:
        """Text parsed at a time."""
        return min(self._work // BYTES_PER_TEXT_BYTE, LARGEST_BLOCK_BYTES)

    @property
    def merged_ids(self) -> int:
        """Entries of sorted lists merged at a time."""
        return self._work // BYTES_PER_MERGED_ID

    @property
    def ranked_ids(self) -> int:
        """Ids ranked, or looked up in, at a time."""
        return self._work // BYTES_PER_RANKED_ID

    @property
    def _work(self) -> int:
        return (self.bytes - BASE_BYTES) // self.parts


def threads() -> int:
    """Threads that share the work on one file: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
