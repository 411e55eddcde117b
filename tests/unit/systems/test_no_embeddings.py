"""The control whose every embedding is zero."""

import torch
from torch import nn

from systems.contract import OptimizerKind, Rows
from systems.no_embeddings import NoEmbeddings
from tests.contract.scenes import table
from tests.unit.systems.specs import batch, spec

TABLES = (table("a", 5, 4, "a1", "a2"), table("b", 3, 8, mean=True))
BATCH = batch({"b": [[1], [2]], "a2": [[3], []], "a1": [[3, 4], [3]]})


def control(kind: OptimizerKind = OptimizerKind.SGD) -> NoEmbeddings:
    return NoEmbeddings(spec(*TABLES, device="cpu", kind=kind))


def test_pools_zeros_whatever_was_loaded_and_the_model_around_it_trains() -> None:
    system, dense = control(), nn.Linear(16, 1)
    system.load_rows("a", 0, Rows(torch.ones(5, 4)))
    system.set_learning_rate(0.5)
    assert torch.equal(system.read_rows("a", torch.tensor([0, 4, 4])).weights, torch.zeros(3, 4))
    pooled = system(BATCH)
    assert pooled.keys() == ["a1", "a2", "b"]
    assert torch.equal(pooled.values(), torch.zeros(2, 16))
    dense(pooled.values()).sum().backward()
    assert dense.bias.grad is not None


def test_rows_read_have_the_state_of_the_optimizer() -> None:
    ids = torch.tensor([0, 2])
    assert control(OptimizerKind.ROWWISE_ADAGRAD).read_rows("b", ids).state["sum"].shape == (2,)
    assert control(OptimizerKind.ADAGRAD).read_rows("b", ids).state["sum"].shape == (2, 8)
    adam = control(OptimizerKind.ADAM).read_rows("b", ids).state
    assert {name: tuple(value.shape) for name, value in adam.items()} == {"exp_avg": (2, 8), "exp_avg_sq": (2, 8)}


def test_takes_no_memory_counts_nothing_and_saves_and_loads() -> None:
    system = control()
    assert system.memory() == {}
    assert system.counters().steps == 0
    assert not system.placement.offloads
    assert NoEmbeddings.required_bytes(system.spec) == {}
    control().load_state_dict(system.state_dict())
