"""A cell's process with rows on a drive: held, once its tables are written, to what training takes and the budget.

What training takes is measured first: the same model trains on the same stream without rows, in the same process. From
then on whatever the process holds more counts as held for rows, the page cache of its files included, and the kernel
holds it to the budget. Nothing is taken on trust from a system.
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchrec import KeyedJaggedTensor, KeyedTensor

from suite.records.drive import DriveSpeed, HeldMemory
from suite.run import drive
from suite.run.cell.asked import Asked
from suite.run.cell.training import build_trainer, in_process
from suite.run.memory_group import MemoryGroup
from systems.no_embeddings import NoEmbeddings

_STEPS = 6
"""Of training without rows: from the second on it takes no more memory."""
_MOST_PROBED_BYTES, _LEAST_PROBED_BYTES = 1 << 30, 1 << 26


class HostBudget:
    """The budget of this process.

    Args:
        asked: What runs.
        group: This process is in it, and has no rows yet.
    """

    def __init__(self, asked: Asked, group: MemoryGroup) -> None:
        self._asked = asked
        self._group = group
        _train_without_rows(asked)
        gc.collect()
        self._without_rows = group.usage_bytes - group.file_bytes
        self._limit = self._without_rows + (asked.cell.host_budget_bytes or 0)

    def apply(self) -> None:
        """Hold the process to the budget from now on, and begin with nothing in the page cache.

        Raises:
            CannotHold: more is in use.
        """
        self._asked.frequencies.forget()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        for path in Path(tempfile.gettempdir()).rglob("*"):
            if path.is_file() and path.stat().st_size:
                _drop(path)
        self._group.limit(self._limit)
        self._group.reset_peak()

    def held(self) -> HeldMemory:
        """How it went so far."""
        return HeldMemory(
            how=self._group.how,
            without_rows_bytes=self._without_rows,
            limit_bytes=self._limit,
            peak_bytes=self._group.peak_bytes,
        )


@contextmanager
def host_budget(asked: Asked) -> Iterator[HostBudget | None]:
    """The budget of a cell with rows on a drive; None for others.

    Raises:
        CannotHold: a process cannot be held here.
    """
    if not asked.on_drive:
        yield None
        return
    with MemoryGroup.make() as group:
        group.enter()
        yield HostBudget(asked, group)


def drive_of(asked: Asked) -> tuple[DriveSpeed | None, tuple[str, ...]]:
    """What the drive gives that the rows will be on, or a note that says why that is not known."""
    size = min(max(asked.spec.row_bytes // 4, _LEAST_PROBED_BYTES), _MOST_PROBED_BYTES)
    seconds = 2.0 if size == _MOST_PROBED_BYTES else 0.5
    try:
        return drive.measure(Path(tempfile.gettempdir()), file_bytes=size, seconds=seconds), ()
    except drive.CannotMeasure as error:
        return None, (f"the drive was not measured: {error}",)


class _WithoutRows(NoEmbeddings):
    """Pools zeros that want a gradient, as pooled rows do."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        pooled = super().forward(features)
        pooled.values().requires_grad_()
        return pooled


def _train_without_rows(asked: Asked) -> None:
    cell = asked.cell
    trainer = build_trainer(
        _WithoutRows(asked.spec),
        asked.workload,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=cell.round_seed,
        feed=in_process(asked.workload, asked.spec.device),
        total_steps=_STEPS,
    )
    trainer.run(_STEPS)


def _drop(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
