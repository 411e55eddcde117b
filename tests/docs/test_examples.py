"""The training scripts of `docs/examples`: few changed lines, the same losses, the same weights, on ranks too."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.docs.commands import ROOT, run_python

EXAMPLES = ROOT / "docs" / "examples"
PLAIN, CACHED = EXAMPLES / "train_dlrm_torchrec.py", EXAMPLES / "train_dlrm_cached.py"
RANKS_PLAIN, RANKS_CACHED = EXAMPLES / "train_dlrm_ranks_torchrec.py", EXAMPLES / "train_dlrm_ranks_cached.py"
STEPS = 50


def changed_lines(plain: Path, cached: Path) -> list[str]:
    diff = difflib.unified_diff(*(script.read_text().splitlines() for script in (plain, cached)), lineterm="", n=0)
    return [line for line in list(diff)[2:] if line[0] in "+-"]


def losses_in(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", output, flags=re.MULTILINE)]


def run(script: Path, *arguments: object) -> list[float]:
    """Losses that a script prints."""
    code, output = run_python([str(script), *map(str, arguments)], ROOT)
    assert code == 0, output
    return losses_in(output)


def run_on_ranks(script: Path, ranks: int) -> list[float]:
    """Losses that a script prints under torchrun."""
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
    return losses_in(done.stdout)


def test_the_cache_takes_few_changed_lines_which_the_pages_show_or_count() -> None:
    changed = changed_lines(PLAIN, CACHED)
    page = (ROOT / "docs" / "freq-cache.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)\n```", page, flags=re.DOTALL)
    assert shown.splitlines() == changed
    assert f"{len(changed)} changed lines" in page
    assert (
        f"differs from [torchrec's](docs/examples/{PLAIN.name}) in {len(changed)} lines"
        in (ROOT / "README.md").read_text()
    )
    on_ranks = changed_lines(RANKS_PLAIN, RANKS_CACHED)
    assert f"in {len(on_ranks)} lines" in (ROOT / "docs" / "several-devices.md").read_text()
    assert 0 < len(changed) < 15
    assert 0 < len(on_ranks) <= 20


@pytest.mark.slow
def test_both_scripts_learn_the_same_from_the_same_start(tmp_path: Path) -> None:
    start = tmp_path / "start.pt"
    run(PLAIN, "--steps", 0, "--save", start)
    ends = [tmp_path / "plain.pt", tmp_path / "cached.pt"]
    plain, cached = (
        run(script, "--steps", STEPS, "--load", start, "--save", end)
        for script, end in zip((PLAIN, CACHED), ends, strict=True)
    )
    assert len(plain) == STEPS
    assert plain[-1] < 0.8 * plain[0]  # it learns, so that equal losses say something
    assert cached == pytest.approx(plain, abs=1e-5)
    ours, theirs = torch.load(ends[1]), torch.load(ends[0])
    assert ours.keys() == theirs.keys()
    for name, weights in theirs.items():
        torch.testing.assert_close(ours[name], weights, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_ranks_learn_what_one_rank_learns_and_as_much_as_torchrec() -> None:
    one, two, torchrec = (run_on_ranks(*given) for given in ((RANKS_CACHED, 1), (RANKS_CACHED, 2), (RANKS_PLAIN, 1)))
    assert len(one) == len(two) == len(torchrec) == STEPS
    assert one[-1] < 0.8 * one[0]
    assert two == pytest.approx(one, abs=1e-5)
    assert one[-1] == pytest.approx(torchrec[-1], rel=0.1)  # from other first rows
