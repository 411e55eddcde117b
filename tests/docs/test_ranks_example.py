"""The two training scripts for ranks in `docs/examples`: few changed lines, and two ranks learn what one learns."""

from __future__ import annotations

import difflib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import run_python

ROOT = Path(__file__).resolve().parents[2]
PLAIN, CACHED = (ROOT / "docs" / "examples" / f"train_dlrm_ranks_{name}.py" for name in ("torchrec", "cached"))
STEPS = 40


def of_one_rank(script: Path) -> list[float]:
    """What a script prints where torchrun has started one process, which is this one."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
            patch.setenv(name, str(value))
        code, output = run_python([str(script), "--steps", str(STEPS)], ROOT)
    assert code == 0, output
    return printed(output)


def of_two_ranks(script: Path) -> list[float]:
    """What a script prints under torchrun."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *torchrun, str(script), "--steps", str(STEPS)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return printed(done.stdout)


def printed(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", output, flags=re.MULTILINE)]


def test_the_cache_on_ranks_takes_at_most_20_changed_lines_and_the_page_says_how_many() -> None:
    plain, cached = (script.read_text().splitlines() for script in (PLAIN, CACHED))
    changed = [line for line in list(difflib.unified_diff(plain, cached, lineterm="", n=0))[2:] if line[0] in "+-"]
    assert 0 < len(changed) <= 20
    assert f"in {len(changed)} lines" in (ROOT / "docs" / "several-devices.md").read_text()


@pytest.mark.slow
def test_two_ranks_learn_what_one_rank_learns_and_as_much_as_torchrec() -> None:
    one, two, torchrec = of_one_rank(CACHED), of_two_ranks(CACHED), of_one_rank(PLAIN)
    assert len(one) == len(two) == len(torchrec) == STEPS
    assert one[-1] < 0.8 * one[0]  # it learns, so that equal losses say something
    assert two == pytest.approx(one, abs=1e-5)
    assert one[-1] == pytest.approx(torchrec[-1], rel=0.1)  # from other first rows
