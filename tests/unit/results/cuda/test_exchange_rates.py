"""The program runs, at sizes that say nothing; Triton interprets the kernel where there is no device."""

import json
from pathlib import Path

import pytest
import torch


def test_every_way_has_a_rate_both_ways_for_each_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    import exchange_rates

    monkeypatch.setattr(exchange_rates, "LEAST_S", 0.001)
    exchange_rates.main(["--rows", "500", "--moved", "40", "--out", str(tmp_path / "record.json")])
    lines = [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()[3:]]
    found = json.loads((tmp_path / "record.json").read_text())["rates"]
    assert lines == ["copy", "staged", "torch", *(f"exchange, {n}" for n in exchange_rates.PROGRAMS)]
    for optimizer in exchange_rates.LAYOUTS:
        for direction in ("in", "out"):
            own = [r for r in found if (r["optimizer"], r["direction"]) == (optimizer, direction)]
            assert [r["way"] for r in own] == lines
            assert all(r["gb_per_s"] >= 0 for r in own)
