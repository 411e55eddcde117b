"""Rows in memory-mapped files: the simplest approach when tables do not fit in RAM."""

import mmap
import os
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import construct_split_state
from torch import Tensor, nn

from systems.contract import Counters, OptimizerKind, Placement, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import TBE, number_rows, tbe_states
from systems.fbgemm.tbe_system import TBESystem
from systems.features import Group

_SYNC_BYTES = 64 << 20
"""Loading leaves less than this in the page cache that is not on the drive yet."""


class MappedFile:
    """A file mapped as one fp32 tensor, `elements`, with all of its blocks allocated in advance.

    The kernel reads pages one by one, as they are touched (`MADV_RANDOM`).

    Raises:
        OSError: the drive has no room for it. Without allocation, a store through the map would crash the process.
    """

    def __init__(self, path: Path, elements: int) -> None:
        size_bytes = 4 * elements
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        weakref.finalize(self, os.close, self._file)
        os.posix_fallocate(self._file, 0, size_bytes)
        mapped = mmap.mmap(self._file, size_bytes)
        mapped.madvise(mmap.MADV_RANDOM)
        self.elements = torch.frombuffer(mapped, dtype=torch.float32)
        self._unsynced_bytes = 0

    def store(self, start: int, values: Tensor) -> None:
        """Overwrite elements from `start` on by plain writes: a store through the map would read every page first.

        Raises:
            OSError: the drive refuses them.
        """
        left = values.float().contiguous().flatten().numpy().data.cast("B")
        at = 4 * start
        while left:
            written = os.pwrite(self._file, left[:_SYNC_BYTES], at)
            at, left = at + written, left[written:]
            self._unsynced_bytes += written
            if self._unsynced_bytes >= _SYNC_BYTES:
                os.fdatasync(self._file)
                os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)  # pages that training may not want
                self._unsynced_bytes = 0


class MappedTable(TBESystem):
    """Every row in a mapped file, in fbgemm's kernels: what people do first when tables do not fit in RAM."""

    keeps_rows_read = True
    host_rows_are = Tier.DISK
    gpu_alternative = "fbgemm_uvm"
    location = EmbeddingLocation.HOST

    def __init__(self, spec: SystemSpec) -> None:
        kept = tempfile.TemporaryDirectory(prefix="mapped_table_")
        self._directory = Path(kept.name)
        super().__init__(spec)
        weakref.finalize(self, kept.cleanup)

    def _build(self, group: Group) -> TBE:
        """A TBE whose rows and optimizer state lie in mapped files.

        fbgemm would fill as much memory with zeros first. So it builds tables of one row each, and all that it derives
        from the number of rows, and the memory itself, are replaced before anything is read.
        """
        tbe = super()._build(replace(group, tables=tuple(replace(t, num_embeddings=1) for t in group.tables)))
        sizes = [table.num_embeddings for table in group.tables]
        tbe.embedding_specs = [(rows, *spec[1:]) for rows, spec in zip(sizes, tbe.embedding_specs, strict=True)]
        tbe.rows_per_table.copy_(torch.tensor([sizes[t] for t in group.table_of_feature]))
        number_rows(tbe, sizes)
        self._files: list[MappedFile] = []
        for name in ["weights"] if self.spec.optimizer.kind is OptimizerKind.SGD else ["weights", "momentum1"]:
            rowwise = name == "momentum1" and self.spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
            split = construct_split_state(tbe.embedding_specs, rowwise=rowwise, cacheable=False)
            self._files.append(MappedFile(self._directory / name, split.host_size))
            setattr(tbe, f"{name}_physical_offsets", split.offsets)
            getattr(tbe, f"{name}_offsets").copy_(torch.tensor([split.offsets[t] for t in group.table_of_feature]))
            setattr(tbe, f"{name}_host", nn.Parameter(self._files[-1].elements))
        return tbe

    @property
    def placement(self) -> Placement:
        return Placement(label="mapped file", offloads=True)

    @property
    def busy_between_steps(self) -> bool:
        return True  # the kernel writes changed pages to the drive when it sees fit

    def counters(self) -> Counters:
        return self._counter.counters()

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        tbe, index = self._tbe_of_table[table]
        kept = {"weight": tbe.split_embedding_weights()[index], **tbe_states(tbe, index)}
        for file, (name, whole) in zip(self._files, kept.items(), strict=True):
            part = whole[start : start + len(rows.weights)]
            values = {"weight": rows.weights, **rows.state}.get(name)
            file.store(part.storage_offset(), torch.zeros_like(part) if values is None else values)
