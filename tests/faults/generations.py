"""Tables in a directory, committed generation after generation, whose rows say by whom and when they were written."""

from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from systems.freq_cache.tiers.commits import Commits
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.slow_tier import RowLayout

BATCHES = 3
"""Writes between two commits. Their rows overlap."""
SHARE = 0.15
"""Of all rows, in one write: after some commits a third of the log is free, and its positions are used again."""


class Generation(NamedTuple):
    """What a commit holds: it follows on that of the number before, and `life` tells attempts at it apart."""

    number: int
    life: int


class Table(NamedTuple):
    """Rows, and what a record of them consists of."""

    rows: int
    layout: RowLayout
    ram_bytes: int = 0


SCENES: dict[str, tuple[Table, ...]] = {
    "52 bytes": (Table(4000, RowLayout(12, torch.float32, {"sum": 1})),),
    "512 bytes": (Table(2000, RowLayout(128, torch.float32, {})),),
    "516 bytes": (Table(2000, RowLayout(128, torch.float32, {"sum": 1})),),
    "512 bytes and RAM": (Table(2000, RowLayout(128, torch.float32, {}), 200_000),),
    "4096 bytes and 40 together": (
        Table(300, RowLayout(1024, torch.float32, {})),
        Table(3000, RowLayout(4, torch.float16, {"exp_avg": 4, "exp_avg_sq": 4})),
    ),
}


def writes(generation: Generation, tables: tuple[Table, ...]) -> Iterator[tuple[int, npt.NDArray[np.int64], int]]:
    """What a generation writes, in order: which table, which of its rows, and the mark that they get."""
    for number in range(BATCHES):
        for position, table in enumerate(tables):
            chance = np.random.default_rng([*generation, number, position])
            rows = chance.choice(table.rows, int(SHARE * table.rows), replace=False)
            yield position, rows, 1 + number + BATCHES * (generation.number + 10_000 * generation.life)


def records_of(rows: npt.NDArray[np.int64], marks: npt.NDArray[np.int64], layout: RowLayout) -> Tensor:
    """The records `[n, width]` of rows with these marks, all bits of them; a row without a mark is zero."""
    words = layout.record_bytes // 4
    seeds = rows.astype(np.uint32) * np.uint32(0x9E3779B1) + marks.astype(np.uint32) * np.uint32(0x85EBCA77)
    values = seeds[:, None] ^ (np.arange(words, dtype=np.uint32) * np.uint32(0xC2B2AE3D))
    values[marks == 0] = 0
    return torch.from_numpy(values.view(np.uint8)).view(layout.element)


class Expected:
    """What the tables hold after the generations that were added."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.at = Generation(0, 0)
        self._tables = tables
        self._marks = [np.zeros(table.rows, dtype=np.int64) for table in tables]

    def add(self, generation: Generation) -> None:
        assert generation.number == self.at.number + 1
        for position, rows, mark in writes(generation, self._tables):
            self._marks[position][rows] = mark
        self.at = generation

    def wrong_rows(self, held: "Tables") -> list[int]:
        """How many rows of each table are others than they should be."""
        wrong = []
        for table, marks, tier in zip(self._tables, self._marks, held.tiers, strict=True):
            rows, out = torch.arange(table.rows), table.layout.empty(table.rows)
            tier.read(rows, out)
            wanted = records_of(rows.numpy(), marks, table.layout)
            wrong.append(int((out.view(torch.uint8) != wanted.view(torch.uint8)).any(dim=1).sum()))
        return wrong


class Tables:
    """The tables of a directory, opened as they were last committed; several commit together, as caches do."""

    def __init__(self, directory: Path, tables: tuple[Table, ...]) -> None:
        self._tables = tables
        self._commits = Commits(directory, [str(number) for number in range(len(tables))])
        self.tiers = [
            FileTier(self._commits, number, rows=table.rows, layout=table.layout, ram_bytes=table.ram_bytes)
            for number, table in enumerate(tables)
        ]

    @property
    def committed(self) -> Generation:
        """The generation that was committed last, when the tables were opened."""
        return Generation(**self._commits.extra) if self._commits.extra else Generation(0, 0)

    def write(self, generation: Generation, after_each: Callable[[], None] = lambda: None) -> None:
        for position, rows, mark in writes(generation, self._tables):
            records = records_of(rows, np.full_like(rows, mark), self._tables[position].layout)
            self.tiers[position].evict(torch.from_numpy(rows), records)
            after_each()

    def commit(self, generation: Generation) -> None:
        self._commits.commit([tier.save_map for tier in self.tiers], generation._asdict())

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()
        self._commits.close()


def go_on(directory: Path, scene: str, life: int, most: int, parent: Connection) -> None:
    """Open the tables, write generations and commit them, and tell which begins with what, and what is done."""
    parent.send(("open", 0))
    tables = Tables(directory, SCENES[scene])
    found = tables.committed.number
    parent.send(("opened", found))
    for number in range(found + 1, found + 1 + most):
        parent.send(("write", number))
        tables.write(Generation(number, life))
        parent.send(("commit", number))
        tables.commit(Generation(number, life))
        parent.send(("done", number))
    tables.close()
