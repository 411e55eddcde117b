"""The steps of docs/cuda.md in the page's order, for so many minutes: run as a script, on a CUDA device.

    python results/cuda/half_hour.py [--minutes 9.5] [--again] [--dry-run]

The page begins with what is worth most. The same command goes on where it stopped: a step that ended is left out, and
one that the time cut off is given again, and finds what it did itself. A step that fails does not stop the others, and
is left out too until --again. How each step ended is in results/cuda/steps.json, what it printed in results/cuda/logs.
The exit code is 0 once all have ended well.
"""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import killpg
from pathlib import Path

from suite.records.store import write_json

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 30.0
"""For a step that is told to stop: `run_bench.py` ends its cells and keeps what is done."""
LEAST_S = 20.0
"""A step is not begun with less."""
_SHOWN_LINES = 12
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
_LIMIT = re.compile(r"\s+# at most (\d+) min$")


@dataclass(frozen=True)
class Step:
    """A command of the page. `limit_s`: what the page allows it; a step that takes longer has failed."""

    command: str
    limit_s: float

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.command)
        return [sys.executable, *words[1:]] if words[0] == "python" else words


def steps_of(page: str) -> list[Step]:
    """The lines of all shell blocks behind the heading `## Steps`."""
    lines = [line.strip() for block in _BLOCK.findall(page.partition("## Steps")[2]) for line in block.splitlines()]
    found = []
    for line in filter(None, lines):
        limit = _LIMIT.search(line)
        found.append(Step(_LIMIT.sub("", line), 60.0 * float(limit[1]) if limit else float("inf")))
    return found


def carry_out(step: Step, *, seconds: float, output: Path) -> str:
    """Run a step, for so many seconds at most. Returns how it ended."""
    time_s = min(seconds, step.limit_s)
    with output.open("ab") as log:
        process = subprocess.Popen(
            step.words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(time_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            return "cut off" if time_s < step.limit_s else f"failed: not done in {step.limit_s / 60:g} minutes"
        except KeyboardInterrupt:
            _stop(process)
            raise
    return "ended" if code == 0 else f"failed: exit code {code}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        killpg(process.pid, signal.SIGKILL)  # and what it left behind
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5, help="in all; what is not done then waits for next time")
    parser.add_argument("--again", action="store_true", help="also the steps that failed")
    parser.add_argument("--dry-run", action="store_true", help="say what would run")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "cuda.md")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "cuda", help="of steps.json and logs")
    options = parser.parse_args(arguments)
    over = time.monotonic() + 60 * options.minutes
    steps, file = steps_of(options.page.read_text(encoding="utf-8")), options.out / "steps.json"
    ended: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    for number, step in enumerate(steps, start=1):
        how = ended.get(step.command, "")
        if how == "ended" or (how.startswith("failed") and not options.again):
            _say(f"{number}. {how}: {step.command}")
            continue
        left = over - time.monotonic() - GRACE_S
        if options.dry_run or left < LEAST_S:
            _say(f"{number}. {'would run' if options.dry_run else 'waits for next time'}: {step.command}")
            continue
        _say(f"{number}. {step.command}")
        begun, output = time.monotonic(), options.out / "logs" / f"step{number:02}.log"
        output.parent.mkdir(parents=True, exist_ok=True)
        ended[step.command] = carry_out(step, seconds=left, output=output)
        write_json(file, ended)
        _say("\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]))
        _say(f"{number}. {ended[step.command]}, after {time.monotonic() - begun:.0f} s; all it printed: {output}\n")
    return 0 if all(ended.get(step.command) == "ended" for step in steps) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
