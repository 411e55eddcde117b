"""Rows read in place: what is counted, and what a row weighs each way."""

import pytest
from listed_traces import ListedTrace, setting

from suite.simulate.models.model import RowBytes, replay
from suite.simulate.models.uvm import UncachedModel
from systems.contract import OptimizerKind, SparseOptimizer

BATCHES = [[0, 0, 1, 5], [1, 1, 1, 4], [2, 2, 5, 5]]


def test_forward_reads_every_occurrence_and_backward_every_distinct_row() -> None:
    model = UncachedModel(setting(ListedTrace((4, 2), BATCHES), 3, counted_from=1), {})
    tally = replay(model)
    assert model.slots == 0
    assert (tally.batches, tally.lookups, tally.unique_ids) == (2, 8, 4)
    assert (tally.unique_misses, tally.lookup_misses) == (4, 8)
    assert (tally.rows_fetched, tally.rows_written_back) == (12, 4)


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        (OptimizerKind.SGD, (12 * 32, 4 * 32)),
        (OptimizerKind.ROWWISE_ADAGRAD, (12 * 32, 4 * 32)),
        (OptimizerKind.ADAGRAD, (12 * 32 + 4 * 32, 4 * 64)),
        (OptimizerKind.ADAM, (12 * 32 + 4 * 64, 4 * 96)),
    ],
)
def test_state_moves_with_its_row_unless_it_sits_on_the_device(kind: OptimizerKind, moved: tuple[int, int]) -> None:
    model = UncachedModel(setting(ListedTrace((4, 2), BATCHES), 3, counted_from=1), {})
    row = RowBytes(weights=32, optimizer=SparseOptimizer(kind=kind, lr=0.1), dim=8)
    assert model.bytes_moved(replay(model), row) == moved
