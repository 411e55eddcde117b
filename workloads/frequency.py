"""How often rows are accessed: counted, or estimated by a sketch of bounded memory, on the training split alone.

Only the training split is counted: no row of validation or test can reach a frequency.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from datasketches import frequent_items_error_type, frequent_items_sketch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from workloads.batch import Workload
from workloads.compiled import compiled
from workloads.errors import DataError
from workloads.split import Split, prefix_of

_BLOCK_IDS = 1 << 22
"""Ids that are counted together: a sketch takes each distinct id of a block once, with its number of accesses."""
_ENTRY_BYTES = 48
"""Memory of a sketch per place of its hash map: id, count and state, a Python integer for the id, and a margin."""
_LOAD = 0.75
_LEAST_LG = 3

Ints = npt.NDArray[np.int64]


@compiled
def add_accesses(ids: Ints, counts: Ints) -> None:
    """Add one to the count of every id, int64 `[rows]`, for each time that it is there."""
    for i in range(ids.size):
        counts[ids[i]] += 1


@dataclass(frozen=True)
class SketchedFrequencies:
    """Estimated accesses.

    Attributes:
        accesses: int64 `[rows]` by table. Never above the true number; 0 for the rows that the sketch does not hold.
        error: By table, how far an estimate may lie below the true number; 0: the counts are exact.
        lookups: By table, all accesses.
        samples: Samples whose ids were counted.
    """

    accesses: Mapping[str, Tensor]
    error: Mapping[str, int]
    lookups: Mapping[str, int]
    samples: int


class FrequencySketch:
    """The most frequent rows of every table, in bounded memory.

    One frequent-items sketch of Apache DataSketches per table (Misra-Gries with decrements by a median: Anderson et
    al., "A High-Performance Algorithm for Identifying Frequent Items in Data Streams", 2017). A cache needs to know
    which rows are hot. This sketch holds just those, and its bound on the error holds in every case. A count-min sketch
    would have to be queried for every row of a table, and rare rows would look hot where they collide with hot ones.

    With a hash map of `m` places no estimate is off by more than `3.5 / m` of its table's accesses; tables of at most
    `0.75 m` rows are counted exactly. All large tables get maps of one size.

    Args:
        table_rows: Rows by table.
        memory_bytes: For all sketches together. 32 MB of ids that wait to be counted come on top.

    Raises:
        DataError: the memory is too small for one sketch per table.
    """

    def __init__(self, table_rows: Mapping[str, int], *, memory_bytes: int) -> None:
        self._rows = dict(table_rows)
        # the smallest map that holds so many rows exactly
        wanted = {name: max(_LEAST_LG, int(np.ceil(np.log2(rows / _LOAD)))) for name, rows in self._rows.items()}
        sizes = {
            cap: sum(_ENTRY_BYTES << min(lg, cap) for lg in wanted.values())
            for cap in range(_LEAST_LG, max(wanted.values()) + 1)
        }
        if sizes[_LEAST_LG] > memory_bytes:
            raise DataError(
                f"{memory_bytes:,} bytes are too few for a frequency sketch of {len(wanted)} tables: "
                f"give at least {sizes[_LEAST_LG]:,}"
            )
        cap = max(cap for cap, size in sizes.items() if size <= memory_bytes)
        self._sketches = {name: frequent_items_sketch(min(lg, cap)) for name, lg in wanted.items()}
        self._waiting: dict[str, list[Ints]] = {name: [] for name in wanted}
        self._waiting_ids = 0

    def add(self, features: KeyedJaggedTensor) -> None:
        """Count the ids of a batch; features are named for their tables."""
        for name, bags in features.to_dict().items():
            ids = bags.values().numpy()
            self._waiting[name].append(ids)
            self._waiting_ids += ids.size
        if self._waiting_ids >= _BLOCK_IDS:
            self._flush()

    def result(self, *, samples: int) -> SketchedFrequencies:
        """What was seen so far, in `samples` samples."""
        self._flush()
        return SketchedFrequencies(
            accesses={name: self._accesses(name) for name in self._rows},
            # of an id that was never there, all that is known is how much the sketch may have lost
            error={name: int(sketch.get_upper_bound(-1)) for name, sketch in self._sketches.items()},
            lookups={name: int(sketch.total_weight) for name, sketch in self._sketches.items()},
            samples=samples,
        )

    def _flush(self) -> None:
        for name, parts in self._waiting.items():
            ids, accesses = np.unique(np.concatenate([np.empty(0, np.int64), *parts]), return_counts=True)
            update = self._sketches[name].update
            for row, count in zip(ids.tolist(), accesses.tolist(), strict=True):
                update(row, count)
            parts.clear()
        self._waiting_ids = 0

    def _accesses(self, name: str) -> Tensor:
        # numpy's zeros take no memory until they are written to
        accesses = np.zeros(self._rows[name], dtype=np.int64)
        found = self._sketches[name].get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES, 0)
        for row, _estimate, lower, _upper in found:
            accesses[row] = lower
        return torch.from_numpy(accesses)


def sketched(
    workload: Workload, *, prefix: float, memory_bytes: int, on_batch: Callable[[], None] = lambda: None
) -> SketchedFrequencies:
    """Estimate accesses from the first whole batches of the training split.

    Args:
        workload: Any.
        prefix: Share of the training batches to see, above 0 to 1.
        memory_bytes: See `FrequencySketch`.
        on_batch: Called after every batch.

    Raises:
        DataError: the memory is too small.
        ValueError: the prefix is out of range.
    """
    sketch = FrequencySketch(dict(workload.tables), memory_bytes=memory_bytes)
    seen = 0
    for index in range(prefix_of(workload.batches(Split.TRAIN), prefix)):
        features = workload.batch(index, Split.TRAIN).features
        sketch.add(features)
        seen += features.stride()
        on_batch()
    return sketch.result(samples=seen)
