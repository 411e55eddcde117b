"""The main job and the commands of docs/cuda.md on the virtual device: each ends well, or as it should, with no times.

They run in pytest's process one after the other, with one forkserver: importing the libraries anew for each would take
longer than what they compute.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.cuda.half_hour import ROOT, Step, steps_of
from suite.records.measured import Turns
from suite.records.store import RecordStore
from suite.run.process import limits_of
from suite.run.turns.groups import BASELINE_REPEAT, MemoryNeed, arrange
from suite.run.turns.timing import time_group, times_of
from tests.docs.commands import run_python

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SGD, OTHERS = pytest.mark.xdist_group("sgd"), pytest.mark.xdist_group("others")
"""Two processes, each about half of the work."""

JOB = ("--device", "cuda", "--scale", "smoke", "--workloads", "avazu")
FEW = "full_gpu,freq_cache,freq_cache[look_ahead=4],colossalai_cache,hot_split"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of all runs, as on the page: a cell that one has done is not done by another."""
    return tmp_path_factory.mktemp("runs")


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the records of a run, by system."""
    before = set(folder.glob("records/*.json"))
    code, _ = run_python(["run_bench.py", *JOB, "--out", str(folder), *arguments], ROOT)
    records = [json.loads(path.read_text()) for path in folder.glob("records/*.json") if path not in before]
    return code, {record["cell"]["system"]: record for record in records}


def statuses(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: record["status"] for name, record in records.items()}


@pytest.mark.parametrize(
    ("optimizer", "without"),
    [
        pytest.param("sgd", (), marks=SGD),
        pytest.param("rowwise_adagrad", ("colossalai_cache",), marks=OTHERS),
        pytest.param("adam", ("colossalai_cache", "cpu_embeddings", "hot_split"), marks=OTHERS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_systems_end_well_and_no_time_is_kept(optimizer: str, without: tuple[str, ...], shared: Path) -> None:
    code, records = run(shared, "--systems", "all", "--optimizer", optimizer)
    assert code == 0
    assert len(records) == 20
    assert statuses(records) == dict.fromkeys(records, "ok") | dict.fromkeys(without, "unsupported")
    assert all(record["measurement"]["timing"] is None for record in records.values() if record["status"] == "ok")


@OTHERS
def test_a_budget_of_the_device(shared: Path) -> None:
    _, records = run(shared, "--systems", FEW, "--device-budget", "2MiB")
    assert statuses(records) == dict.fromkeys(FEW.split(","), "ok") | {"full_gpu": "infeasible"}


@OTHERS
def test_full_tables_end_as_out_of_memory_where_the_cache_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 4 KB, 100 MB in all; a context takes 512 MiB."""
    monkeypatch.setenv("VCUDA_MEMORY", str(600 << 20))
    wide = "--systems", "full_gpu,freq_cache", "--embedding-dim", "1024", "--batch-size", "64", "--lr", "0.01"
    code, records = run(tmp_path, *wide)
    assert statuses(records) == {"full_gpu": "oom_device", "freq_cache": "ok"}
    assert code == 1


@SGD
def test_systems_take_turns_in_one_process(shared: Path, tmp_path: Path) -> None:
    """No run on this device does so, since it has no speed: several systems on it, which train the same batches."""
    run(shared, "--systems", FEW)  # done, unless this test runs alone
    found = [record for record in RecordStore(shared).load_all()[0] if record.cell.system in FEW.split(",")]
    records = [one for one in found if one.cell.optimizer == "sgd" and one.cell.device_budget_bytes is None]
    much = MemoryNeed(host=1 << 40, device=1 << 40, disk=1 << 40)
    for number, group in enumerate(arrange(records, much)):
        limits = limits_of(records[0].cell, timeout_s=None)
        result = time_group(replace(group, turns=1), limits=limits, log=tmp_path / f"{number}.log")
        times = times_of(group, result, identity="")
        assert times.keys() | {"full_gpu" + BASELINE_REPEAT} >= {one.name for one in group.participants}
        assert all(isinstance(turns, Turns) for turns in times.values()), times


SMALLER = {"--scale": "smoke", "--steps": "20", "--device-budget": "2MiB", "--cache-ratio": "0.1"}
"""As little as every system can do with, and the cells of the tests above, which a command then finds done."""
ALSO = {
    "bitwise.py": ["--scale", "smoke", "--steps", "20"],
    "exchange_rates.py": ["--rows", "500", "--moved", "20"],
    "step_profile.py": ["--warmup", "2", "--steps", "5"],
    "pytest": ["--collect-only", "tests/contract/test_cuda_steady_state.py"],  # all run with the contract
}


def smaller(step: Step, folder: Path) -> list[str]:
    """The words of a command that is done soon, and writes to a folder."""
    words = step.words[1:]
    for at, option in enumerate(words):
        if option in SMALLER:
            words[at + 1] = SMALLER[option]
        if option == "--workloads":
            words[at + 1] = words[at + 1].rpartition(",")[2]
    if "--out" in words:
        at = words.index("--out") + 1
        words[at] = str(folder / Path(words[at]).relative_to("results/cuda"))
    return words + [word for name, more in ALSO.items() if name in map(os.path.basename, words) for word in more]


@SGD
@pytest.mark.parametrize(
    "step",
    steps_of((ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")),
    ids=lambda step: " ".join(step.command.split()[1:4]),
)
def test_a_command_of_the_page_ends_well(step: Step, shared: Path) -> None:
    codes = {0, 1} if step.command.endswith("suite doctor") else {0}  # which finds whether the machine is at work
    code, output = run_python(smaller(step, shared), ROOT)
    assert code in codes, output
    if any(name in step.command for name in ("doctor", "exchange_rates", "step_profile")):
        assert "virtual device: no speed" in output
