"""Counting distinct rows for systems without counters of their own."""

from systems.contract import OptimizerKind, SparseOptimizer
from systems.unique_counter import UniqueCounter
from tests.contract.scenes import table
from tests.unit.systems.specs import batch

SGD = SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0)
TABLES = (table("a", 9, 4, "a1", "a2"), table("b", 9, 8))
BATCH = batch({"b": [[1, 1], [2]], "a2": [[3], []], "a1": [[3, 4], [3]]})


def counter(batches: int = 1) -> UniqueCounter:
    counting = UniqueCounter(TABLES)
    counting.enabled = True
    for _ in range(batches):
        counting.observe(BATCH)
    return counting


def test_uncached_uvm_reads_every_occurrence_and_again_every_row_in_backward() -> None:
    found = counter().uncached_uvm(SGD)
    assert (found.unique_misses, found.lookup_misses) == (4, 7)
    assert found.rows_fetched == 7 + 4
    assert found.rows_written_back == 4
    assert found.bytes_fetched == 16 * (4 + 2) + 32 * (3 + 2)
    assert found.bytes_written_back == 16 * 2 + 32 * 2
    assert found.per_table == {"a": (2, 2), "b": (2, 2)}


def test_uncached_uvm_moves_state_with_a_row_unless_it_is_row_wise() -> None:
    plain = counter().uncached_uvm(SGD)
    rowwise = counter().uncached_uvm(SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=1.0))
    adagrad = counter().uncached_uvm(SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=1.0))
    adam = counter().uncached_uvm(SparseOptimizer(kind=OptimizerKind.ADAM, lr=1.0))
    assert rowwise == plain
    assert plain.bytes_fetched is not None
    assert adagrad.bytes_fetched == plain.bytes_fetched + 16 * 2 + 32 * 2
    assert adam.bytes_fetched == plain.bytes_fetched + 2 * (16 * 2 + 32 * 2)


def test_half_rows_move_half_the_bytes() -> None:
    counting = UniqueCounter((TABLES[0], table("b", 9, 8, half=True)))
    counting.enabled = True
    counting.observe(BATCH)
    found = counting.uncached_uvm(SGD)
    assert found.bytes_fetched == 16 * (4 + 2) + 16 * (3 + 2)
    assert found.bytes_written_back == 16 * 2 + 16 * 2


def test_unknown_traffic_is_none_and_not_zero() -> None:
    found = counter().counters()
    assert (found.lookups, found.unique_ids) == (7, 4)
    assert (found.unique_misses, found.rows_fetched, found.bytes_fetched, found.per_table) == (None,) * 4
