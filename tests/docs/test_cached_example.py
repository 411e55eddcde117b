"""The two training scripts of `docs/examples`: few changed lines, the same losses, the same weights."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
import torch

from tests.docs.commands import run_python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PLAIN, CACHED = (ROOT / "docs" / "examples" / f"train_dlrm_{name}.py" for name in ("torchrec", "cached"))
STEPS = 60


def changed_lines() -> list[str]:
    plain, cached = (script.read_text().splitlines() for script in (PLAIN, CACHED))
    diff = list(difflib.unified_diff(plain, cached, lineterm="", n=0))[2:]
    return [line for line in diff if line[0] in "+-"]


def run(script: Path, *arguments: object) -> list[float]:
    """Losses that a script prints."""
    code, output = run_python([str(script), *map(str, arguments)], ROOT)
    assert code == 0, output
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", output, flags=re.MULTILINE)]


def test_the_cache_takes_fewer_than_15_changed_lines() -> None:
    assert 0 < len(changed_lines()) < 15


def test_the_page_shows_the_lines_that_differ() -> None:
    page = (ROOT / "docs" / "freq-cache.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)\n```", page, flags=re.DOTALL)
    assert shown.splitlines() == changed_lines()
    assert f"{len(changed_lines())} changed lines" in page


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
