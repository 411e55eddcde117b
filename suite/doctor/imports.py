"""Whether packages import: tried in a process of their own, which a broken shared library may kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

MODULES = ("numba", "torch", "fbgemm_gpu", "tensordict", "torchmetrics", "torchrec", "pandas", "polars")
"""In the order of what needs what: the error of one that others import is then told once, under its own name."""
_TIMEOUT_S = 60.0

_SCRIPT = """
import importlib, json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
out = sys.stdout
sys.stdout = sys.stderr
def say(**words):
    print(json.dumps(words), file=out, flush=True)
for name in sys.argv[1:]:
    say(module=name)
    try:
        module = importlib.import_module(name)
        facts = {}
        if name == "torch":
            facts = {
                "threads": module.get_num_threads(),
                "built_for": module.version.cuda or "",
                "sees_gpu": module.cuda.is_available(),
            }
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        say(module=name, error=type(error).__name__ + (": " + lines[-1] if lines else ""))
    else:
        say(module=name, error="", **facts)
"""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of one import.

    Attributes:
        error: Type and last line of the error. Empty: it imported.
        threads: torch only: how many it computes with unless told.
        built_for: torch only: CUDA version of its build; empty for a CPU build.
        sees_gpu: torch only: whether it finds a device.
    """

    error: str = ""
    threads: int | None = None
    built_for: str | None = None
    sees_gpu: bool | None = None


_IN_HAND = Imported(error="did not end")


def import_all(modules: Sequence[str] = MODULES, *, timeout_s: float = _TIMEOUT_S) -> dict[str, Imported]:
    """Import one after the other in one process; where one of them ends it, the rest goes on in another.

    One process, because most of them import torch, which takes seconds.

    Args:
        modules: What to import, in order.
        timeout_s: For all of them together.

    Returns:
        By module; those that were not tried for want of time are missing.
    """
    found: dict[str, Imported] = {}
    deadline = time.monotonic() + timeout_s
    left = list(modules)
    while left and time.monotonic() < deadline:
        said, last_words = _run(left, timeout_s=deadline - time.monotonic())
        found.update(said)
        fatal = next((name for name in left if name not in said or said[name].error == _IN_HAND.error), None)
        if fatal is None:
            return found
        found[fatal] = replace(_IN_HAND, error=last_words)
        left = left[left.index(fatal) + 1 :]
    return found


def _run(modules: Sequence[str], *, timeout_s: float) -> tuple[dict[str, Imported], str]:
    """What the process said of each module before it ended, and why it ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *modules],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return _parsed(said), "did not import in time"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return _parsed(done.stdout), f"it ended the process with {ended}{f': {lines[-1]}' if lines else ''}"


def _parsed(said: str) -> dict[str, Imported]:
    found = {}
    for line in said.splitlines():
        try:
            words = json.loads(line)
        except ValueError:  # cut off as the process ended
            continue
        module = words.pop("module")
        found[module] = Imported(**words) if words else _IN_HAND
    return found
