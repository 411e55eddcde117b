"""Memory limit of a cell's process with rows on a drive: the memory of training without rows, plus the host budget.

The memory of training is measured first, in the same process: the same model trains on batches of the same shape with a
few hundred rows, all in RAM. All memory beyond the peak of that counts as memory for rows, the page cache of the files
included; once the tables are written, the kernel limits it to the budget. Figures of the system itself are not used.
"""

import ctypes
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from suite.records.measured import CgroupLimit, DriveSpeed
from suite.run import drive
from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import TOGETHER, Trainer, tables_of
from suite.run.memory_group import MemoryGroup
from suite.run.worker import Reporter
from systems.full_gpu import FullRAM

_STEPS = 8
"""Training steps with few rows, with the MLPs and without: enough to reach the peak of temporary memory."""
_FEW_ROWS = 300
"""Rows per table in these steps."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Options of glibc's `mallopt`."""
_LARGE_BYTES = 1 << 20
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

    def apply(self) -> None:
        """Limit the process to the budget from now on, starting with an empty page cache.

        Raises:
            CgroupUnavailable: more memory is in use.
        """
        self._setup.frequencies.forget()
        gc.collect()
        for path in Path(tempfile.gettempdir()).rglob("*"):
            with suppress(FileNotFoundError):  # RocksDB removes files at any time
                if path.is_file() and path.stat().st_size:
                    _drop(path)
        self._group.limit(self._limit)
        self._group.reset_peak()

    def held(self) -> CgroupLimit:
        """Limit and peak so far."""
        return CgroupLimit(
            how=self._group.how,
            without_rows_bytes=self._without_rows,
            limit_bytes=self._limit,
            peak_bytes=self._group.peak_bytes,
        )


@contextmanager
def host_budget(setup: CellSetup) -> Iterator[HostBudget | None]:
    """The budget of a cell with rows on a drive; None for others.

    Raises:
        CgroupUnavailable: memory control groups are not available here.
    """
    if setup.cell.host_budget_bytes is not None:
        _return_freed_memory()
    if not setup.on_drive:
        yield None
        return
    with MemoryGroup() as group:
        group.enter()
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
    trainer = Trainer(
        FullRAM(replace(setup.spec, tables=tables_of(few.tables, cell.embedding_dim))),
        few,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=cell.round_seed,
        feed=feed,
        total_steps=ahead,
    )
    trainer.run(_STEPS)
    trainer.run(_STEPS, embeddings_only=True)


def _return_freed_memory() -> None:
    """Make the allocator return large freed blocks to the kernel at once, instead of keeping them for reuse.

    The bytes that it keeps differ between runs by a hundred megabytes, as much as a small budget. Done for all systems,
    also without a budget, because new pages cost time.
    """
    with suppress(AttributeError):  # only glibc has this setting
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_TRIM_THRESHOLD, 8 * _LARGE_BYTES)


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
