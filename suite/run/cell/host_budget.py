"""Memory limit of a cell's process with rows on a drive: the memory of training without rows, plus the host budget.

The memory of training is measured first, in the same process: the same model trains on batches of the same shape with a
few hundred rows, all in RAM. All memory beyond the peak of that counts as memory for rows, the page cache of the files
included; once the tables are written, the kernel limits it to the budget. Figures of the system itself are not used.

Then memory is filled with the most frequent rows, by the same frequencies for all: `freq_cache` starts full of them; of
systems whose memory holds what was read, the rows are read.
"""

import ctypes
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from suite.records.measured import CgroupLimit, DriveSpeed
from suite.run import drive
from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import TOGETHER, tables_of
from suite.run.memory_group import MemoryGroup
from suite.run.worker import Reporter
from systems.contract import EmbeddingSystem, SystemSpec
from systems.fbgemm.tbe_system import FullRAM

_STEPS = 8
"""Training steps with few rows, with the MLPs and without: enough to reach the peak of temporary memory."""
_FEW_ROWS = 300
"""Rows per table in these steps."""
_READ_TOGETHER = 4096
"""Rows that are read at a time to fill memory."""
_FULL = 0.98
"""Share of the limit at which memory counts as full."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _MOST_ARENAS = -3, -1, -8
"""Options of glibc's `mallopt`."""
_LARGE_BYTES = 1 << 20
_MOST_KEPT_BYTES, _NEVER = 1 << 25, (1 << 31) - 1
"""The largest values that glibc accepts."""
_MOST_PROBED_BYTES, _LEAST_PROBED_BYTES = 1 << 30, 1 << 26


class HostBudget:
    """The host budget of this process, which has entered `group` and has no rows yet."""

    def __init__(self, setup: CellSetup, group: MemoryGroup) -> None:
        self._setup = setup
        self._group = group
        gc.collect()
        _train_with_few_rows(setup)
        # without the kernel's peak the current usage is taken, which makes the limit smaller
        self._without_rows = (group.peak_bytes or group.usage_bytes) - group.file_bytes
        self._limit = self._without_rows + (setup.cell.host_budget_bytes or 0)

    def apply(self, system: EmbeddingSystem, *, beat: Callable[[], None]) -> None:
        """Limit the process to the budget from now on, and fill the page cache or the library's cache of `system`.

        Raises:
            CgroupUnavailable: more memory is in use.
        """
        spec, budget = self._setup.spec, self._setup.cell.host_budget_bytes or 0
        frequent = most_frequent(spec, row_budget_bytes=budget) if system.keeps_rows_read else None
        self._setup.frequencies.forget()
        gc.collect()
        for path in Path(tempfile.gettempdir()).rglob("*"):
            with suppress(FileNotFoundError):  # RocksDB removes files at any time
                if path.is_file() and path.stat().st_size:
                    with path.open("rb") as file:
                        os.fsync(file)
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._group.limit(self._limit)
        self._group.reset_peak()
        if frequent is not None:
            read_in(system, frequent, is_full=lambda: self._group.usage_bytes >= _FULL * self._limit, beat=beat)

    def held(self) -> CgroupLimit:
        """Limit and peak so far."""
        return CgroupLimit(
            how=self._group.how,
            without_rows_bytes=self._without_rows,
            limit_bytes=self._limit,
            peak_bytes=self._group.peak_bytes,
        )


def most_frequent(spec: SystemSpec, *, row_budget_bytes: int) -> Tensor:
    """Numbers over all tables of as many rows as the bytes hold, the most frequent one first."""
    assert spec.frequencies is not None  # a cell's spec has them
    counts = torch.cat([spec.frequencies[table.name] for table in spec.tables])
    row_bytes = (spec.row_bytes + spec.state_bytes) // len(counts)
    return counts.topk(min(len(counts), row_budget_bytes // row_bytes)).indices


def read_in(
    system: EmbeddingSystem, rows: Tensor, *, is_full: Callable[[], bool], beat: Callable[[], None] = lambda: None
) -> None:
    """Read rows in order until memory is full, then again in reverse: the first are to leave memory last.

    Args:
        system: Its memory holds what was read.
        rows: Numbers over all tables, `[n]`.
        is_full: Asked before each part of the rows is read.
        beat: Called before each part is read.
    """
    tables = list(system.tables.values())
    ends = torch.tensor([table.num_embeddings for table in tables]).cumsum(0)

    def read(numbers: Tensor) -> None:
        beat()
        table_of = torch.searchsorted(ends, numbers, right=True)
        for index in table_of.unique().tolist():
            first = int(ends[index]) - tables[index].num_embeddings
            system.read_rows(tables[index].name, numbers[table_of == index] - first)

    done: list[Tensor] = []
    for part in rows.split(_READ_TOGETHER):
        if is_full():
            break
        read(part)
        done.append(part)
    for part in reversed(done):
        read(part)


@contextmanager
def host_budget(setup: CellSetup) -> Iterator[HostBudget | None]:
    """The budget of a cell with rows on a drive; None for others.

    Raises:
        CgroupUnavailable: memory control groups are not available here.
    """
    if not setup.on_drive:
        yield None
        return
    with MemoryGroup() as group:
        yield HostBudget(setup, group)


def drive_of(setup: CellSetup, reporter: Reporter) -> DriveSpeed | None:
    """Measured speed of the drive that the rows will be on; None, and a note with the reason, if it fails."""
    size = min(max(setup.spec.row_bytes // 4, _LEAST_PROBED_BYTES), _MOST_PROBED_BYTES)
    seconds = 2.0 if size == _MOST_PROBED_BYTES else 0.5
    try:
        return drive.measure(Path(tempfile.gettempdir()), file_bytes=size, seconds=seconds)
    except drive.CannotMeasure as error:
        reporter.notes.append(f"the drive was not measured: {error}")
        return None


def _train_with_few_rows(setup: CellSetup) -> None:
    cell = setup.cell
    few = setup.workload.shrunk(max_table_rows=_FEW_ROWS, batch_size=cell.batch_size)
    # preload as many batches as will ever be preloaded in the run
    ahead = max(cell.warmup_steps, TOGETHER, 2 * _STEPS) + int(setup.spec.parameters.get("look_ahead", 0))
    feed = in_process(few, setup.spec.device)
    feed.fill(ahead)
    spec = replace(setup.spec, tables=tables_of(few.tables, cell.embedding_dim))
    of_few = replace(setup, system_class=FullRAM, workload=few, spec=spec)
    _, trainer = of_few.build(feed, total_steps=ahead, beat=lambda: None)
    trainer.run(_STEPS)
    trainer.run(_STEPS, embeddings_only=True)


def set_allocator(*, keep_freed: bool) -> None:
    """Make the allocator keep freed blocks for reuse, or return large ones to the kernel at once.

    By default it does one or the other, by what the process allocated before: a system may take thousands of new pages
    in every step, or none. A timed system keeps its blocks.

    Within a host budget they are returned. The bytes kept differ between runs by a hundred megabytes, as much as a
    small budget. Nor may each thread keep bytes of its own: RocksDB's 32 readers then hold half as much again as its
    caches are told to. Those that threads have by now stay theirs. Done for all systems, also without a budget,
    because new pages cost time.
    """
    with suppress(AttributeError):  # only glibc has this setting
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, _MOST_KEPT_BYTES if keep_freed else _LARGE_BYTES)
        set_option(_TRIM_THRESHOLD, _NEVER if keep_freed else 8 * _LARGE_BYTES)
        if not keep_freed:
            set_option(_MOST_ARENAS, 2)
