"""How often every row is used, as far as a cell lets its system know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from suite.records.measured import FrequencySource
from suite.records.record import Cell
from workloads.batch import Workload
from workloads.frequency import sketched
from workloads.split import prefix_of


class LazyFrequencies(Mapping[str, Tensor]):
    """Frequencies that are counted when a system first asks: at full scale they take seconds and gigabytes.

    Attributes:
        source: Where they came from; None as long as nobody asked.
    """

    def __init__(self, workload: Workload, *, cell: Cell, beat: Callable[[], None] = lambda: None) -> None:
        self._workload = workload
        self._prefix = cell.frequency_prefix
        self._sketch_bytes = cell.frequency_sketch_bytes
        self._beat = beat
        self._counted: Mapping[str, Tensor] | None = None
        self.source: FrequencySource | None = None

    def forget(self) -> None:
        """Count anew when asked again: the memory is wanted for other things."""
        self._counted = None

    def _all(self) -> Mapping[str, Tensor]:
        if self._counted is None:
            self._counted = self._exact() if self._sketch_bytes is None else self._sketched(self._sketch_bytes)
        return self._counted

    def _exact(self) -> Mapping[str, Tensor]:
        counted = self._workload.frequencies(self._prefix)
        samples = prefix_of(self._workload.epoch_rows(), self._prefix)
        self.source = FrequencySource(prefix=self._prefix, samples=samples)
        return counted

    def _sketched(self, memory_bytes: int) -> Mapping[str, Tensor]:
        found = sketched(self._workload, prefix=self._prefix, memory_bytes=memory_bytes, on_batch=self._beat)
        self.source = FrequencySource(
            prefix=self._prefix,
            samples=found.samples,
            sketch_bytes=memory_bytes,
            error_accesses=max(found.error.values()),
            error_share=max(error / max(1, found.lookups[name]) for name, error in found.error.items()),
        )
        return found.accesses

    def __getitem__(self, table: str) -> Tensor:
        return self._all()[table]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._workload.tables)

    def __len__(self) -> int:
        return len(self._workload.tables)
