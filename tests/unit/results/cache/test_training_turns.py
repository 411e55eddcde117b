"""The command trains all systems alike and leaves a record, at sizes that say nothing of their speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import training_turns

from suite.run.cell.training import Run, Trainer

TINY = ["--scale", "smoke", "--device", "cpu", "--builds", "2", "--turns", "2", "--steps", "2"]
SYSTEMS = ["full_gpu", "freq_cache"]


def test_command_compares_systems_with_the_first_one(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    asked = ["--systems", ",".join(SYSTEMS), "--workloads", "avazu", "--optimizer", "rowwise_adagrad"]
    training_turns.main([*asked, *TINY, "--out", str(out)])
    record = json.loads(out.read_text())
    found = record["results"]["avazu"]
    assert list(found) == SYSTEMS
    assert (record["device"], record["scale"], record["optimizer"]) == ("cpu", "smoke", "rowwise_adagrad")
    assert found["full_gpu"]["throughput_relative"] == 1
    for one in found.values():
        assert len(one["by_build"]) == 2
        assert one["quartiles"][0] <= one["throughput_relative"] <= one["quartiles"][1]


def test_a_system_that_learns_something_else_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, losses = Trainer.run, iter(range(1000))

    def differently(self: Trainer, steps: int) -> Run:
        found = train(self, steps)
        return Run(steps=steps, duration_s=found.duration_s, data_s=0, wait_s=0, loss=float(next(losses)))

    monkeypatch.setattr(Trainer, "run", differently)
    out = tmp_path / "record.json"
    with pytest.raises(SystemExit, match="losses differ"):
        training_turns.main(["--systems", "full_gpu,freq_cache", "--workloads", "avazu", *TINY, "--out", str(out)])
    assert not out.exists()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            ["--systems", "full_gpu,freq_cache[tier=pinned]"],
            r"freq_cache\[tier=pinned\] cannot train on avazu: pinned rows",
        ),
        (["--turns", "0"], "2"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked: list[str], says: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with pytest.raises(SystemExit, match=says):
        training_turns.main(["--workloads", "avazu", *TINY, *asked, "--out", str(out)])
    assert not out.exists()
