"""Where the described rows come from: a prepared directory, or a synthetic stream."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workloads.batch import Batch, DataKind, Split
from workloads.errors import DataError
from workloads.manifest import IdRule
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.streams.synthetic import SyntheticWorkload

_BLOCK_ROWS = 1 << 16
_ROW_0 = {
    IdRule.RANK: "rare ids and ids not in the training split",
    IdRule.HASHED: "missing ids, and ids that hash to it",
}


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Rows of a dataset.

    Attributes:
        tables: Names of tables with their rows.
        row_0: What row 0 of every table stands for; None where it is a row like any other.
        rows: Rows by split.
        read: Gives the first rows of a split in order, so many at most; DataError where an id is outside its table.
    """

    name: str
    kind: DataKind
    tables: tuple[tuple[str, int], ...]
    row_0: str | None
    rows: dict[Split, int]
    read: Callable[[Split, int], Iterator[Batch]]


def prepared_rows(folder: Path) -> RowSource:
    """The rows of a directory that holds manifest.json, or whose only subdirectory with one is meant.

    Raises:
        DataError: there is no prepared dataset, more than one, or it is damaged.
    """
    found = find_prepared(folder)
    if len(found) > 1:
        raise DataError(f"{folder} holds several datasets: name one, {' or '.join(map(str, found.values()))}")
    workload = PreparedWorkload.open(*found.values(), batch_size=1)

    def read(split: Split, limit: int) -> Iterator[Batch]:
        for start in range(0, limit, _BLOCK_ROWS):
            yield workload.rows(start, min(start + _BLOCK_ROWS, limit), split)

    return _source(workload, row_0=_ROW_0[workload.manifest.settings.ids], read=read)


def synthetic_rows(name: str, *, batch_size: int, seed: int) -> RowSource:
    """The full batches of the stream of that name.

    Raises:
        DataError: the name, the batch size or the seed is refused.
    """
    try:
        workload = SyntheticWorkload.create(name, batch_size=batch_size, seed=seed)
    except ValueError as error:
        raise DataError(f"--synthetic {name}: {error}") from error

    def read(split: Split, limit: int) -> Iterator[Batch]:
        return (workload.batch(index, split) for index in range(limit // batch_size))

    return _source(workload, row_0=None, read=read)


def _source(
    workload: PreparedWorkload | SyntheticWorkload,
    *,
    row_0: str | None,
    read: Callable[[Split, int], Iterator[Batch]],
) -> RowSource:
    rows = {split: workload.batches(split) * workload.batch_size for split in Split}
    return RowSource(name=workload.name, kind=workload.kind, tables=workload.tables, row_0=row_0, rows=rows, read=read)
