"""Where the described rows come from: a prepared directory, or a synthetic stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.batch import DataKind, Split
from workloads.errors import DataError
from workloads.frequency import Ints
from workloads.manifest import IdRule, array_file, prepare_command
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.streams.synthetic import SyntheticWorkload

_BLOCK_ROWS = 1 << 16
_ROW_0 = {
    IdRule.RANK: "rare ids and ids not in the training split",
    IdRule.HASHED: "missing ids, and ids that hash to it",
}


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a split.

    Attributes:
        values: Ids within their table, ordered by table, then sample, int64 `[accesses]`.
        offsets: Where the ids of a table and sample begin, int64 `[tables * samples + 1]`.
        labels: Positive or not, bool `[samples]`.
    """

    values: Ints
    offsets: Ints
    labels: npt.NDArray[np.bool_]

    @property
    def samples(self) -> int:
        """Rows of the block."""
        return len(self.labels)

    def table(self, number: int) -> tuple[Ints, Ints]:
        """Ids of a table, int64 `[accesses]`, and where those of a sample begin, int64 `[samples + 1]`."""
        offsets = self.offsets[number * self.samples : (number + 1) * self.samples + 1]
        return self.values[offsets[0] : offsets[-1]], offsets - offsets[0]


class PreparedRows:
    """Rows of a prepared dataset. A `RowSource`."""

    kind = DataKind.REAL

    def __init__(self, folder: Path) -> None:
        """Open a directory that holds manifest.json, or whose only subdirectory with one is meant.

        Raises:
            DataError: there is no prepared dataset, more than one, or it is damaged.
        """
        found = find_prepared(folder)
        if len(found) > 1:
            raise DataError(f"{folder} holds several datasets: name one, {' or '.join(map(str, found.values()))}")
        self._workload = PreparedWorkload.open(*found.values(), batch_size=1)
        self.name, self.tables = self._workload.name, self._workload.tables
        self.row_0: str | None = _ROW_0[self._workload.manifest.settings.ids]

    def samples(self, split: Split) -> int:
        """Rows of a split."""
        return self._workload.batches(split)

    def blocks(self, split: Split, *, limit: int) -> Iterator[Block]:
        """The first rows of a split, in order, `limit` at most.

        Raises:
            DataError: an id lies outside its table; the message names file, row and table.
        """
        arrays = self._workload.arrays[split]
        for start in range(0, limit, _BLOCK_ROWS):
            part = slice(start, min(start + _BLOCK_ROWS, limit))
            values = np.ascontiguousarray(arrays.ids[part].T, dtype=np.int64)
            self._check(values, split, start)
            yield Block(values.reshape(-1), np.arange(values.size + 1), arrays.labels[part] != 0)

    def _check(self, values: Ints, split: Split, start: int) -> None:
        rows = np.array([count for _, count in self.tables])[:, None]
        if values.min(initial=0) >= 0 and (values < rows).all():
            return
        table, sample = np.argwhere((values < 0) | (values >= rows))[0]
        name, count = self.tables[table]
        folder, manifest = self._workload.folder, self._workload.manifest
        path = folder / array_file(split, "ids")
        problem = f"{path}, row {start + sample}: id {values[table, sample]} is outside table {name} of {count} rows"
        raise DataError(f"{problem}. Make the data again: {prepare_command(folder, manifest)}")


class SyntheticRows:
    """Rows of a synthetic stream, in full batches. A `RowSource`."""

    kind = DataKind.SYNTHETIC
    row_0: str | None = None

    def __init__(self, name: str, *, batch_size: int, seed: int) -> None:
        """Create the stream of that name.

        Raises:
            DataError: the name, the batch size or the seed is refused.
        """
        try:
            self._workload = SyntheticWorkload.create(name, batch_size=batch_size, seed=seed)
        except ValueError as error:
            raise DataError(f"--synthetic {name}: {error}") from error
        self.name, self.tables = self._workload.name, self._workload.tables

    def samples(self, split: Split) -> int:
        """Rows of a split, in full batches."""
        return self._workload.batches(split) * self._workload.batch_size

    def blocks(self, split: Split, *, limit: int) -> Iterator[Block]:
        """The first full batches of a split that hold `limit` rows at most."""
        for index in range(min(limit, self.samples(split)) // self._workload.batch_size):
            batch = self._workload.batch(index, split)
            features = batch.features
            yield Block(features.values().numpy(), features.offsets().numpy(), batch.labels.numpy() != 0)


RowSource = PreparedRows | SyntheticRows
"""Where rows come from: `name`, `kind`, `tables` with their rows, and what `row_0` of every table stands for, None
where it is a row like any other."""
