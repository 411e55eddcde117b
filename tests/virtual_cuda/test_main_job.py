"""The main job on the virtual device: every system ends well, or as it should, and nothing that it took is shown."""

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
JOB = ("--device", "cuda", "--scale", "smoke", "--workloads", "avazu", "--quiet")
FEW = "full_gpu,freq_cache,freq_cache[look_ahead=4],colossalai_cache,hot_split"


def run(folder: Path, *arguments: str, memory: int | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the records of a run, by system."""
    command = [sys.executable, str(ROOT / "run_bench.py"), *JOB, "--out", str(folder), *arguments]
    environment = os.environ | ({"VCUDA_MEMORY": str(memory)} if memory else {})
    ended = subprocess.run(command, check=False, cwd=ROOT, env=environment, timeout=560)
    records = [json.loads(path.read_text()) for path in folder.glob("records/*.json")]
    return ended.returncode, {record["cell"]["system"]: record for record in records}


def statuses(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: record["status"] for name, record in records.items()}


@pytest.mark.parametrize(
    ("optimizer", "without"),
    [
        ("sgd", ()),
        ("rowwise_adagrad", ("colossalai_cache",)),
        ("adam", ("colossalai_cache", "cpu_embeddings", "hot_split")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_systems_end_well_and_no_time_is_kept(optimizer: str, without: tuple[str, ...], tmp_path: Path) -> None:
    code, records = run(tmp_path, "--systems", "all", "--optimizer", optimizer)
    assert code == 0
    assert len(records) == 20
    assert statuses(records) == dict.fromkeys(records, "ok") | dict.fromkeys(without, "unsupported")
    assert all(record["measurement"]["timing"] is None for record in records.values() if record["status"] == "ok")


def test_a_budget_of_the_device(tmp_path: Path) -> None:
    _, records = run(tmp_path, "--systems", FEW, "--device-budget", "2MiB")
    assert statuses(records) == dict.fromkeys(FEW.split(","), "ok") | {"full_gpu": "infeasible"}


def test_full_tables_end_as_out_of_memory_where_the_cache_fits(tmp_path: Path) -> None:
    """Rows of 4 KB, 100 MB in all; a context takes 512 MiB."""
    wide = "--systems", "full_gpu,freq_cache", "--embedding-dim", "1024", "--batch-size", "64", "--lr", "0.01"
    code, records = run(tmp_path, *wide, memory=600 << 20)
    assert statuses(records) == {"full_gpu": "oom_device", "freq_cache": "ok"}
    assert code == 1


@pytest.mark.parametrize(("asked", "opened"), [("NVML", False), ("the driver", True)])
def test_workers_are_forked_where_no_import_opens_the_driver(asked: str, opened: bool) -> None:
    code = "import suite.run.cell.experiment; from suite.run import forkserver; print(forkserver._driver_open())"
    environment = os.environ | ({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if asked == "NVML" else {})
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment, capture_output=True)
    assert ended.stdout.split()[-1].decode() == str(opened)
