"""Checkpoints of `torch.distributed.checkpoint`: rows go in and out some at a time, to and from plain tensors too."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torchrec import EmbeddingBagCollection

from systems.freq_cache import RowLoadPlanner, checkpoint
from tests.contract.scenes import assert_same, snapshot, table
from tests.faults.freq_cache_training import ADAGRAD, TABLES, batch, built, learn, train

ODD = (*TABLES, table("odd", 30, 6), table("tags", 50, 12, half=True))


@pytest.fixture(autouse=True)
def some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_STREAMED_BYTES", 1000)


def test_training_goes_on_from_a_checkpoint_bit_for_bit_beside_a_dense_model(tmp_path: Path) -> None:
    first, dense = built(ODD, optimizer=ADAGRAD, look_ahead=1), nn.Linear(3, 2)
    train(first, range(4))
    first.prefetch(batch(4, ODD))
    dcp.save({"rows": first.streamed_state_dict(), "dense": dense.state_dict()}, checkpoint_id=tmp_path)
    second, other = built(ODD, optimizer=ADAGRAD, seed=9, cache_ratio=0.7, policy="lru"), nn.Linear(3, 2)
    train(second, range(2))
    state = {"rows": second.streamed_state_dict(), "dense": other.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path, planner=RowLoadPlanner())
    assert_same(snapshot(second), snapshot(first))
    assert torch.equal(other.weight, dense.weight)
    train(second, range(4, 8))
    for step in range(4, 8):
        learn(first(batch(step, ODD)).values(), step)
    assert_same(snapshot(second), snapshot(first))


def test_plain_tensors_and_streamed_rows_read_each_other(tmp_path: Path) -> None:
    ours, theirs = built(ODD), EmbeddingBagCollection(tables=list(ODD))
    train(ours, range(2))
    dcp.save(ours.streamed_state_dict(), checkpoint_id=tmp_path / "ours")
    state = theirs.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "ours")
    assert_same({name: value.detach() for name, value in state.items()}, ours.state_dict())
    with torch.no_grad():
        for value in theirs.parameters():
            value.copy_(torch.randn(value.shape))
    dcp.save(theirs.state_dict(), checkpoint_id=tmp_path / "theirs")
    dcp.load(ours.streamed_state_dict(), checkpoint_id=tmp_path / "theirs", planner=RowLoadPlanner())
    assert_same(ours.state_dict(), {name: value.detach() for name, value in theirs.state_dict().items()})


def test_no_second_copy_of_the_rows_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = built((table("rows", 5000, 8),), cache_ratio=0.1)
    read, most = type(ours.caches[0]).read, []

    def watched(self: object, name: str, ids: torch.Tensor) -> object:
        most.append(ids.numel())
        return read(self, name, ids)

    monkeypatch.setattr(type(ours.caches[0]), "read", watched)
    dcp.save(ours.streamed_state_dict(), checkpoint_id=tmp_path)
    assert sum(most) == 5000
    most.clear()
    dcp.load(ours.streamed_state_dict(), checkpoint_id=tmp_path, planner=RowLoadPlanner())
    assert sum(most) == 5000
    assert max(most) <= 1000 // 32


def test_another_planner_is_told_what_to_give_and_nothing_is_loaded(tmp_path: Path) -> None:
    ours = built(ODD)
    before, state = snapshot(ours), ours.streamed_state_dict()
    dcp.save(state, checkpoint_id=tmp_path / "ours")
    dcp.save(built(ODD, seed=9).streamed_state_dict(), checkpoint_id=tmp_path / "other")
    for loads_before in (False, True):
        if loads_before:
            dcp.load(state, checkpoint_id=tmp_path / "ours", planner=RowLoadPlanner())
        with pytest.raises(dcp.api.CheckpointException, match=r"planner=RowLoadPlanner\(\)"):
            dcp.load(state, checkpoint_id=tmp_path / "other")
    assert_same(snapshot(ours), before)
