"""The stream that a cell trains on. Producer processes import this module too, so it imports no system."""

from pathlib import Path

from suite.records.record import Cell
from workloads.batch import Split, Workload
from workloads.manifest import read_manifest
from workloads.prepared import PreparedWorkload
from workloads.streams.synthetic import SyntheticWorkload


def open_workload(cell: Cell, *, whole_split: Split | None = None) -> Workload:
    """The stream that a cell trains on; `whole_split` makes one batch of all rows of that split of real data."""
    if cell.data == "real":
        if cell.data_dir is None:
            raise ValueError("a cell on real data needs a data directory")
        folder = Path(cell.data_dir)
        rows = read_manifest(folder).splits[whole_split].rows if whole_split else cell.batch_size
        return PreparedWorkload.open(folder, batch_size=rows)
    return SyntheticWorkload.create(
        cell.workload, batch_size=cell.batch_size, seed=cell.round_seed, max_rows=cell.max_rows
    )
