"""The two training scripts for ranks in `docs/examples`: few changed lines, and two ranks learn what one learns."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAIN, CACHED = (ROOT / "docs" / "examples" / f"train_dlrm_ranks_{name}.py" for name in ("torchrec", "cached"))
STEPS = 40


def losses_of(script: Path, *, ranks: int) -> list[float]:
    """What a script prints under torchrun."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = subprocess.run(
        [sys.executable, *torchrun, str(script), "--steps", str(STEPS)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", done.stdout, flags=re.MULTILINE)]


def test_the_cache_on_ranks_takes_at_most_20_changed_lines_and_the_page_says_how_many() -> None:
    plain, cached = (script.read_text().splitlines() for script in (PLAIN, CACHED))
    changed = [line for line in list(difflib.unified_diff(plain, cached, lineterm="", n=0))[2:] if line[0] in "+-"]
    assert 0 < len(changed) <= 20
    assert f"in {len(changed)} lines" in (ROOT / "docs" / "several-devices.md").read_text()


@pytest.mark.slow
def test_two_ranks_learn_what_one_rank_learns_and_as_much_as_torchrec() -> None:
    one, two, torchrec = (losses_of(script, ranks=ranks) for script, ranks in ((CACHED, 1), (CACHED, 2), (PLAIN, 1)))
    assert len(one) == len(two) == len(torchrec) == STEPS
    assert one[-1] < 0.8 * one[0]  # it learns, so that equal losses say something
    assert two == pytest.approx(one, abs=1e-5)
    assert one[-1] == pytest.approx(torchrec[-1], rel=0.1)  # from other first rows
