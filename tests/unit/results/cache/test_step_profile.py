"""The profile of a step: intervals are counted once, and the command leaves a record that adds up."""

import json
from pathlib import Path

import pytest
import step_profile
from step_profile import device_figures, device_spans

from suite.records.environment import VIRTUAL_DEVICE


def event(kind: str, name: str, start_us: float, length_us: float) -> dict[str, object]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start_us, "dur": length_us}


def test_copies_under_kernels_are_hidden_and_the_rest_is_exposed() -> None:
    trace = {
        "traceEvents": [
            event("kernel", "gemm", 0, 4000),
            event("kernel", "gemm", 2000, 3000),  # on another stream, beside the first
            event("kernel", "update", 8000, 1000),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 4000, 2000),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 8500, 2000),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0, 9000),
            event("cpu_op", "aten::mm", 0, 9000),
        ]
    }
    figures = device_figures(device_spans(trace), steps=2, wall_s=0.012)
    assert figures == pytest.approx(
        {
            "kernels_ms": 3.0,
            "copies_in_hidden_ms": 0.5,
            "copies_in_exposed_ms": 0.5,
            "copies_out_hidden_ms": 0.25,
            "copies_out_exposed_ms": 0.75,
            "idle_ms": 1.75,
        }
    )


@pytest.mark.parametrize(
    ("system", "parts"),
    [
        ("freq_cache", {"plan", "move rows", "look up"}),
        (
            "freq_cache[tier=file,look_ahead=2]",
            {"plan", "gather to staging, queue the copy in", "fill slots", "read slots", "announce to the planner"},
        ),
    ],
)
def test_the_command_leaves_a_record_whose_parts_lie_within_the_step(
    system: str, parts: set[str], tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    words = ["--scale", "smoke", "--device", "cpu", "--warmup", "4", "--steps", "6", "--system", system]
    step_profile.main([*words, "--out", str(out), "--picture", str(tmp_path / "step.svg")])
    record = json.loads(out.read_text())
    drawn = (tmp_path / "step.svg").read_text()
    assert all(f"<!-- {part[name]} -->" in drawn for part in record["host"] for name in ("thread", "part"))
    on_training = [part for part in record["host"] if part["thread"] == "training"]
    assert parts <= {part["part"] for part in record["host"]}
    assert 0 < sum(part["ms"] for part in on_training) <= record["step_ms_while_timed"]
    assert record["device"] is None
    assert 0 < record["hit_rate"] < 1


def test_a_virtual_device_has_no_times_and_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"environment": {"gpu": VIRTUAL_DEVICE}, "step_ms": 1.0}
    monkeypatch.setattr(step_profile, "profiled", lambda *_, **__: record)
    step_profile.main(["--scale", "smoke", "--device", "cpu", "--out", str(tmp_path / "profile.json")])
    assert capsys.readouterr().out == "the steps ran; virtual device: no speed\n"
    assert not list(tmp_path.iterdir())
