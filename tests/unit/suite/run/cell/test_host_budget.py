"""Memory of a system with rows on a drive is filled by the frequencies that static caches get, before the clock."""

import subprocess
import sys

import pytest
import torch
from torchrec import EmbeddingBagConfig

from suite.run.cell import host_budget
from suite.run.cell.host_budget import most_frequent, read_in
from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec

SIZES = {"a": 5, "b": 3}


def spec():
    tables = tuple(
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=4)
        for name, rows in SIZES.items()
    )
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=1.0),
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=0.5),
        batch_lookups=8,
        frequencies={"a": torch.tensor([1, 9, 3, 0, 5]), "b": torch.tensor([8, 2, 7])},
    )


class Reads:
    """A system that keeps a list of the rows that are read from it."""

    def __init__(self):
        self.tables = {table.name: table for table in spec().tables}
        self.asked = []

    def read_rows(self, table, ids):
        self.asked += [(table, row) for row in ids.tolist()]


def test_as_many_rows_as_the_budget_holds_by_frequency_over_all_tables():
    row_bytes = 4 * 4 + 4
    assert most_frequent(spec(), row_budget_bytes=4 * row_bytes + 19).tolist() == [1, 5, 7, 4]
    assert len(most_frequent(spec(), row_budget_bytes=1 << 20)) == 8


def test_rows_are_read_until_memory_is_full_and_the_most_frequent_ones_last(monkeypatch):
    monkeypatch.setattr(host_budget, "_READ_TOGETHER", 2)
    system = Reads()
    read_in(system, torch.tensor([1, 5, 7, 4, 2, 6]), is_full=lambda: len(system.asked) >= 4)
    first, second = [("a", 1), ("b", 0)], [("a", 4), ("b", 2)]
    assert system.asked == [*first, *second, *second, *first]


NEW_PAGES = """
import resource
import numpy as np
from suite.run.cell.host_budget import set_allocator
set_allocator(keep_freed={keep_freed})
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(16 << 20, dtype=np.uint8)  # 8 pages or more, as they are huge or not; freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("keep_freed", [True, False])
def test_freed_memory_is_kept_or_taken_anew_in_every_step(keep_freed):
    program = NEW_PAGES.format(keep_freed=keep_freed)
    told = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert int(told) < 10 if keep_freed else int(told) >= 10 * 8
