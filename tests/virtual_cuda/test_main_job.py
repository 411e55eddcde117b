"""The main job on the virtual device: every system ends well, and nothing that it took is shown."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
FEW = "full_gpu,freq_cache,freq_cache[look_ahead=4],fbgemm_uvm_caching,hot_split,reference"


def run(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the records of a run."""
    command = [
        sys.executable,
        str(ROOT / "run_bench.py"),
        "--device",
        "cuda",
        "--scale",
        "smoke",
        "--workloads",
        "avazu",
    ]
    ended = subprocess.run([*command, "--out", str(folder), *arguments], check=False, cwd=ROOT, timeout=500)
    return ended.returncode, [json.loads(path.read_text()) for path in sorted(folder.glob("records/*.json"))]


def test_all_systems_end_well_and_no_time_is_kept(tmp_path: Path) -> None:
    code, records = run(tmp_path, "--systems", "all")
    assert code == 0
    assert len(records) == 20
    assert {record["status"] for record in records} == {"ok"}
    assert all(record["measurement"]["timing"] is None for record in records)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_other_optimizers_and_a_budget_of_the_device(optimizer: str, tmp_path: Path) -> None:
    code, records = run(tmp_path, "--systems", FEW, "--optimizer", optimizer, "--device-budget", "2MiB")
    assert {record["status"] for record in records} <= {"ok", "unsupported"}, [r.get("error") for r in records]
    assert sum(record["status"] == "ok" for record in records) >= 3
    assert code in (0, 1)
