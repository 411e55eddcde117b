"""Machine code kept on disk: a change of a function is a change of every loop that holds a copy of it."""

import importlib
import sys
from pathlib import Path

import pytest

from systems.freq_cache import compiled

INNER = "from systems.freq_cache.compiled import inlined\n\n\n@inlined\ndef added(x):\n    return x + {}\n"
OUTER = """
from inner import added
from systems.freq_cache.compiled import compiled


@compiled
def answer(x):
    return added(x)
"""


def test_loop_is_compiled_again_after_a_change_of_a_file_that_it_takes_functions_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "outer.py").write_text(OUTER)
    said = []
    for number in (1, 1, 41):
        (tmp_path / "inner.py").write_text(INNER.format(number))
        compiled._digest.cache_clear()  # as in a process of its own
        for name in ("inner", "outer"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        outer = importlib.import_module("outer")
        said.append((outer.answer(1), sum(outer.answer.stats.cache_hits.values())))
    assert said == [(2, 0), (2, 1), (42, 0)]
