"""Prepared datasets, as far as planning needs to know them."""

from dataclasses import dataclass
from pathlib import Path

from suite.records.options import parse_prepared


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A prepared dataset.

    Attributes:
        digest: Of its manifest.
        training_rows: Rows of the training split.
        table_rows: Rows of all tables.
    """

    folder: Path
    digest: str
    training_rows: int
    table_rows: int


def open_datasets(data_dir: Path, workloads: str) -> dict[str, Dataset]:
    """The prepared datasets that `--workloads` names, in its order; `all` means all that the directory holds.

    Raises:
        BadOption: it does not hold what was asked for.
        DataError: nothing is prepared there, or it is damaged.
    """
    from workloads.prepared import PreparedWorkload, find_prepared  # brings torch, which planning does without

    folders = find_prepared(data_dir)
    found = {}
    for name in parse_prepared(workloads, folders, data_dir=data_dir):
        workload = PreparedWorkload.open(folders[name], batch_size=1)
        found[name] = Dataset(
            folder=folders[name],
            digest=workload.digest,
            training_rows=workload.epoch_rows(),
            table_rows=sum(rows for _, rows in workload.tables),
        )
    return found
