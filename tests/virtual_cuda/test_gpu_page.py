"""Every command of docs/cuda.md ends well on the virtual device, at the smallest scale."""

import os
import subprocess
from pathlib import Path

import pytest

from results.cuda.half_hour import ROOT, Step, steps_of

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALLER = {
    "--scale": "smoke",
    "--steps": "30",
    "--device-budget": "2MiB",
    "--cache-ratio": "0.1",
}
"""As little as every system can do with."""
ALSO = {
    "exchange_rates.py": ["--rows", "500", "--moved", "20"],
    "fbgemm_statistics.py": ["--scale", "smoke", "--batches", "5"],
    "step_profile.py": ["--warmup", "2", "--steps", "5"],
}
STEPS = steps_of((ROOT / "docs" / "cuda.md").read_text(encoding="utf-8"))
*BEFORE, LAST, REPORT = STEPS


def smaller(step: Step, folder: Path) -> list[str]:
    """The words of a command that is done soon, and writes to a folder."""
    words = step.words
    for at, option in enumerate(words):
        if option in SMALLER:
            words[at + 1] = SMALLER[option]
        if option == "--workloads":
            words[at + 1] = words[at + 1].partition(",")[0]
    if "--out" in words:
        at = words.index("--out") + 1
        words[at] = str(folder / Path(words[at]).relative_to("results/cuda"))
    return words + [word for name, more in ALSO.items() if any(name in word for word in words) for word in more]


def run(step: Step, folder: Path, *codes: int) -> None:
    words = smaller(step, folder)
    ended = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=560)
    assert ended.returncode in codes, ended.stdout[-3_000:] + ended.stderr[-3_000:]


@pytest.mark.parametrize("step", BEFORE, ids=lambda step: " ".join(step.command.split()[1:4]))
def test_a_step_ends_well(step: Step, tmp_path: Path) -> None:
    machine_may_be_at_work = step.command.endswith("suite doctor")
    run(step, tmp_path, 0, *([1] if machine_may_be_at_work else []))


def test_the_last_steps_end_well_one_after_the_other(tmp_path: Path) -> None:
    run(LAST, tmp_path, 0)
    run(REPORT, tmp_path, 0)
