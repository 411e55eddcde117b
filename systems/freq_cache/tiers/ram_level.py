"""A file tier with a level of RAM: rows that left the slots keep their records there until others take their places."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.ram_index import IN_RAM, Int32s, Ints, Keys, RamIndex, Sums

_CHUNK = 1 << 14
"""Rows that are read or written at a time."""


class RamTier(FileTier):
    """A file tier with a level of RAM between the slots and the file.

    The level is exclusive: a row enters it when it leaves the slots, and leaves it when a batch that trains takes it
    back, for then the slots have the only copy that counts. A row that loses its place is written to the file if it
    changed, many at a time. A commit writes all that changed, so a crash loses nothing that was committed. Rows that
    leave the slots unchanged, as those of evaluated batches do, are not offered and do not enter.

    Args: those of `FileTier`, and
        ram_bytes: Of records and of the index of their places.
        keys: Of rows that leave the slots: the lowest lose their places first, and of equal ones who has it longest.
            Called on the thread that writes rows back.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ram_bytes: int,
        keys: Keys | None = None,
        **choices: Any,  # noqa: ANN401 - of several types
    ) -> None:
        super().__init__(directory, **choices)
        self.ram_rows = max(1, min(self.rows, ram_bytes // (self.layout.record_bytes + RamIndex.BYTES)))
        self._index = RamIndex(self.ram_rows, self._codes, keys=keys)
        self._records = self.layout.empty(self.ram_rows)
        self._moving = threading.Lock()
        """Held by the thread that looks up or changes who has which place."""

    def read(self, rows: Tensor, out: Tensor) -> None:
        with self._moving:
            held, places = self._held(rows)
            out.index_copy_(0, held, self._records.index_select(0, places))
            self.ram_rows_read += held.numel()
        others = torch.from_numpy(np.delete(np.arange(rows.numel()), held.numpy()))
        records = self.layout.empty(others.numel())
        super().read(rows[others], records)
        out.index_copy_(0, others, records)

    def write(self, rows: Tensor, records: Tensor) -> None:
        super().write(rows, records)
        with self._moving:
            _, places = self._held(rows)
            self._index.vacate(places.numpy())
            self._index.give_back(places.numpy())

    def evict(self, rows: Tensor, records: Tensor) -> None:
        with self._writing:
            self._settle()
            with self._moving:
                held, own = self._held(rows)
                self._index.keep_out(own.numpy())
                chosen = self._index.choose(rows.numel() - held.numel())
                dirty = self._index.dirty(chosen)
                leaving = _long(self._index.rows_at(dirty))
            try:
                if dirty.size:
                    self._log(leaving, self._records[_long(dirty)])
                others = torch.from_numpy(np.delete(np.arange(rows.numel()), held.numpy()))
                entering = torch.cat([held, others[: chosen.size]])
                places = torch.cat([own, torch.from_numpy(chosen)])
                with self._moving:
                    self._index.vacate(chosen)
                    self._records.index_copy_(0, places.long(), records[entering])
                    self._index.enter(rows[entering].to(torch.int32).numpy(), places.numpy(), dirty=True)
            except BaseException:
                with self._moving:
                    self._index.give_back(np.concatenate([chosen, own.numpy()]))
                raise
            rest = others[chosen.size :]
            if rest.numel():  # batches that are not moved yet take all other places
                self._log(rows[rest], records[rest])

    def take(self, rows: Tensor, batch: int) -> None:
        with self._moving:
            self._index.take(self._held(rows)[1].numpy(), batch)

    def moved(self, batch: int) -> None:
        with self._moving:
            self._index.moved(batch)

    def keep(self, rows: Tensor) -> None:
        for start in range(0, rows.numel(), _CHUNK):
            part = rows[start : start + _CHUNK]
            part = part[_long(np.flatnonzero(self._codes_of(part)))]  # first weights need not be kept
            with self._moving:
                part = torch.from_numpy(np.delete(part.numpy(), self._held(part)[0].numpy()))
                chosen = self._index.choose(part.numel(), vacant=True)
            part = part[: chosen.size]
            records = self.layout.empty(part.numel())
            super().read(part, records)
            with self._moving:
                self._records[_long(chosen)] = records
                self._index.enter(part.to(torch.int32).numpy(), chosen, dirty=False)

    def memory(self) -> Mapping[tuple[Tier, MemoryUse], int]:
        weights = len(self._records) * self.layout.weight_bytes
        found = dict(super().memory())
        found[Tier.HOST, MemoryUse.ROWS] = weights
        found[Tier.HOST, MemoryUse.STATE] = self._records.nbytes - weights
        found[Tier.HOST, MemoryUse.INDEX] += self._index.nbytes
        return found

    def _held(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these rows are in RAM, by their numbers in `rows`, int64, and their places, int32."""
        codes = torch.from_numpy(self._codes).index_select(0, rows)
        held = torch.nonzero(codes >= IN_RAM).squeeze(1)
        return held, codes[held] - IN_RAM

    def _codes_of(self, rows: Tensor) -> Ints:
        return self._index.file_codes(super()._codes_of(rows))

    def _file_codes(self, start: int, stop: int) -> Int32s:
        return self._index.file_codes(super()._file_codes(start, stop))

    def _put(self, rows: Ints, codes: Ints, sums: Sums) -> None:
        with self._moving:
            self._index.logged(rows, codes, self._sums, sums)

    def _write_dirty(self) -> None:
        with self._moving:
            dirty = self._index.dirty()
            rows = self._index.rows_at(dirty)
        for start in range(0, dirty.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self._log(_long(rows[chunk]), self._records[_long(dirty[chunk])])

    def _count_as_committed(self) -> None:
        with self._moving:  # else a code could come out of the index meanwhile, and keep its sign
            super()._count_as_committed()
            self._index.committed()


def _long(numbers: Int32s | Ints) -> Tensor:
    return torch.from_numpy(numbers).long()
