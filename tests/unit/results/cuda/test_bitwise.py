"""The program that compares losses and rows bit for bit, on a CPU."""

import json
from pathlib import Path

import bitwise
import pytest

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
