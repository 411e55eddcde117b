"""Rows looked up where they are kept, on the host."""

from systems.contract import Counters, MemoryUse, OptimizerKind, Tier, Verdict
from systems.cpu_embeddings import CPUEmbeddings
from tests.contract.scenes import table
from tests.unit.systems.specs import batch, spec

TABLES = (table("a", 5, 4, "a1", "a2"), table("b", 3, 8))


def test_no_row_is_on_the_device_and_every_lookup_misses() -> None:
    system = CPUEmbeddings(spec(*TABLES, device="cpu", kind=OptimizerKind.ROWWISE_ADAGRAD))
    assert system.memory() == {(Tier.HOST, MemoryUse.ROWS): 5 * 16 + 3 * 32, (Tier.HOST, MemoryUse.STATE): 8 * 4}
    system.count_traffic(True)
    system(batch({"a1": [[3, 4], [3]], "a2": [[3], []], "b": [[1, 1], [2]]}))
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


def test_beside_a_gpu_it_takes_no_byte_there_and_has_the_optimizers_of_a_cpu() -> None:
    beside = spec(*TABLES, device="cuda", total_bytes=1)
    assert CPUEmbeddings.support(beside).verdict is Verdict.YES
    assert CPUEmbeddings.required_bytes(beside) == {Tier.HOST: 5 * 16 + 3 * 32}
    answer = CPUEmbeddings.support(spec(*TABLES, device="cuda", kind=OptimizerKind.ADAM))
    assert answer.verdict is Verdict.UNSUPPORTED
    assert "Adam on a CPU" in answer.reason
