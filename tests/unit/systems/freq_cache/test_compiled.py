"""Machine code kept on disk: a change of a function is a change of every loop that holds a copy of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
INNER = "from systems.freq_cache.compiled import inlined\n\n\n@inlined\ndef added(x):\n    return x + {}\n"
OUTER = """
from inner import added
from systems.freq_cache.compiled import compiled


@compiled
def answer(x):
    return added(x)


print(answer(1))
"""


@pytest.mark.slow
def test_loop_is_compiled_again_after_a_change_of_a_file_that_it_takes_functions_from(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    said = []
    for number in (1, 1, 41):
        (tmp_path / "inner.py").write_text(INNER.format(number))
        code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; import outer"
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        said.append(done.stdout.strip())
    assert said == ["2", "2", "42"]
    assert list(tmp_path.glob("__pycache__/outer.answer*.nbi"))
