"""The steps of docs/cuda.md in the page's order, for so many minutes: run as a script, on a CUDA device.

    python results/cuda/half_hour.py [--minutes 9.5] [--again] [--dry-run]

The page begins with what is worth most. The same command goes on where it stopped: a step that ended is left out, one
that the time cut off is given again, and finds what it did itself; once it was cut off twice, those behind it come
first. A step that fails does not stop the others, and is left out too until --again. How each step ended is in
results/cuda/steps.json, what it printed in results/cuda/logs. The exit code is 0 once all have ended well.
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
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 30.0
"""For a step that is told to stop: `run_bench.py` ends its cells and keeps what is done."""
LEAST_S = 20.0
"""A step is not begun with less."""
_MOST_CUT_OFF = 2
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


class Log:
    """Ends of steps, by command, and their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self._file = folder / "steps.json"
        self.ended: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def how(self, step: Step) -> str:
        """`ended`, `failed` with the reason, `cut off`, or nothing."""
        return str(self.ended.get(step.command, {}).get("how", ""))

    def keeps_others_waiting(self, step: Step) -> bool:
        return bool(self.ended.get(step.command, {}).get("cut_off", 0) >= _MOST_CUT_OFF)

    def note(self, step: Step, how: str, seconds: float) -> None:
        before = self.ended.get(step.command, {"seconds": 0.0, "cut_off": 0})
        self.ended[step.command] = {
            "how": how,
            "seconds": round(before["seconds"] + seconds, 1),
            "cut_off": before["cut_off"] + (how == "cut off"),
        }
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self.ended, indent=2) + "\n")
        new.replace(self._file)


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
    log, steps = Log(options.out), steps_of(options.page.read_text(encoding="utf-8"))
    for number, step in sorted(enumerate(steps, start=1), key=lambda pair: log.keeps_others_waiting(pair[1])):
        how = log.how(step)
        if how == "ended" or (how.startswith("failed") and not options.again):
            _say(f"{number}. {how}: {step.command}")
            continue
        left = over - time.monotonic() - GRACE_S
        if options.dry_run or left < LEAST_S:
            _say(f"{number}. {'would run' if options.dry_run else 'waits for next time'}: {step.command}")
            continue
        _say(f"{number}. {step.command}")
        begun, output = time.monotonic(), log.folder / f"step{number:02}.log"
        output.parent.mkdir(parents=True, exist_ok=True)
        how = "cut off"
        try:
            how = carry_out(step, seconds=left, output=output)
        finally:
            log.note(step, how, time.monotonic() - begun)
        _say("\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]))
        _say(f"{number}. {how}, after {time.monotonic() - begun:.0f} s; all it printed: {output}\n")
    return 0 if all(log.how(step) == "ended" for step in steps) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
