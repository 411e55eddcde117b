"""Systems that move no rows of their own: what they count of rows read in place, pooled elsewhere, or absent."""

import torch
from torch import nn

from systems.contract import Counters, MemoryUse, OptimizerKind, Rows, SparseOptimizer, Tier, Verdict
from systems.fbgemm.tbe_system import CPUEmbeddings
from systems.no_embeddings import NoEmbeddings
from systems.unique_counter import UniqueCounter
from tests.contract.scenes import batch_of, spec, table

TABLES = (table("a", 9, 4, "a1", "a2"), table("b", 9, 4))
BATCH = batch_of({"b": [[1, 1], [2]], "a2": [[3], []], "a1": [[3, 4], [3]]})


def in_place(kind: OptimizerKind = OptimizerKind.SGD) -> Counters:
    """Of uncached UVM, after a batch of 7 ids of 4 rows."""
    counting = UniqueCounter(TABLES)
    counting.enabled = True
    counting.observe(BATCH)
    return counting.uncached_uvm(SparseOptimizer(kind=kind, lr=1.0))


def test_uncached_uvm_reads_every_occurrence_and_again_every_row_in_backward() -> None:
    assert in_place() == Counters(
        steps=1,
        lookups=7,
        unique_ids=4,
        unique_misses=4,
        lookup_misses=7,
        rows_fetched=7 + 4,
        rows_written_back=4,
        bytes_fetched=16 * (7 + 4),
        bytes_written_back=16 * 4,
        per_table={"a": (2, 2), "b": (2, 2)},
    )


def test_uncached_uvm_moves_state_with_a_row_unless_it_is_row_wise() -> None:
    fetched = [in_place(kind).bytes_fetched for kind in OptimizerKind]
    assert fetched == [16 * 11, 16 * 11, 16 * 11 + 64, 16 * 11 + 2 * 64]  # four rows of 16 B


def test_rows_pooled_on_the_host_are_all_missed_and_none_is_moved() -> None:
    system = CPUEmbeddings(spec(*TABLES, device="cpu", kind=OptimizerKind.ROWWISE_ADAGRAD))
    assert system.memory() == {(Tier.HOST, MemoryUse.ROWS): 18 * 16, (Tier.HOST, MemoryUse.STATE): 18 * 4}
    system.count_traffic(True)
    system(BATCH)
    assert system.counters() == Counters(
        steps=1,
        lookups=7,
        unique_ids=4,
        unique_misses=4,
        lookup_misses=7,
        rows_fetched=0,
        rows_written_back=0,
        per_table={"a": (2, 2), "b": (2, 2)},
    )
    beside = spec(*TABLES, device="cuda", total_bytes=1)  # a GPU, of which it takes no byte
    assert CPUEmbeddings.support(beside).verdict is Verdict.YES
    assert CPUEmbeddings.required_bytes(beside) == {Tier.HOST: 18 * 16}
    answer = CPUEmbeddings.support(spec(*TABLES, device="cuda", kind=OptimizerKind.ADAM))
    assert (answer.verdict, "Adam on a CPU" in answer.reason) == (Verdict.UNSUPPORTED, True)


def test_no_embeddings_pools_zeros_whatever_was_loaded_and_the_model_around_it_trains() -> None:
    system, dense = NoEmbeddings(spec(*TABLES, device="cpu", kind=OptimizerKind.ADAGRAD)), nn.Linear(12, 1)
    system.load_rows("a", 0, Rows(torch.ones(9, 4)))
    system.set_learning_rate(0.5)
    rows = system.read_rows("a", torch.tensor([0, 4, 4]))
    assert torch.equal(rows.weights, torch.zeros(3, 4))
    assert rows.state["sum"].shape == (3, 4)
    pooled = system(BATCH)
    assert pooled.keys() == ["a1", "a2", "b"]
    assert torch.equal(pooled.values(), torch.zeros(2, 12))
    dense(pooled.values()).sum().backward()
    assert dense.bias.grad is not None
    assert (system.memory(), NoEmbeddings.required_bytes(system.spec)) == ({}, {})
    assert system.counters() == Counters(steps=0)
    system.load_state_dict(system.state_dict())
