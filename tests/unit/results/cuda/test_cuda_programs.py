"""The programs for CUDA devices run, at sizes that say nothing; Triton interprets the kernel without a device."""

import json
from pathlib import Path

import bitwise
import pytest
import torch

SMALL = ["--scale", "smoke", "--cache-ratio", "0.1", "--steps", "12"]


def test_caches_train_as_full_tables_do_also_where_rows_are_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    bitwise.main([*SMALL, "--systems", "full_ram,freq_cache[look_ahead=4]", "--writes-ms", "5", "--out", str(path)])
    assert capsys.readouterr().out.count("bit for bit the first") == 2
    plain, cached = json.loads(path.read_text())["systems"].values()
    assert plain["losses"] == cached["losses"]
    assert len(plain["losses"]) == 12
    assert plain["rows"] == cached["rows"]
    assert cached["late_batches"] > 0


def test_a_system_that_trains_otherwise_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        bitwise.main([*SMALL, "--systems", "full_ram,hashed"])
    assert "hashed: DIFFERS from the first" in capsys.readouterr().out


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
