"""What is said of cells before they run: predicted speed, and the least that their caches could miss and move."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import IO, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from suite.records.record import Cell, Optimum, Prediction
from suite.run.process import MARK, kill_tree, worker_environment

_LAST_WORDS = 2048
_STALL_S = 1800.0
"""Without a word for so long, the process hangs: at full scale on a CPU a round of a calibration takes minutes."""


class Progress(BaseModel):
    """A sign of life: what goes on, and how much of it is done."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["progress"] = "progress"
    what: str
    done: int
    total: int


class Forecast(BaseModel):
    """All that could be said of one cell, whatever its round. None: it could not be said; `why` says why."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["forecast"] = "forecast"
    cell: str
    """`cell_key` of it."""
    prediction: Prediction | None = None
    optimum: Optimum | None = None
    why: str = ""


class Request(BaseModel):
    """What the process that forecasts is asked for."""

    cells: tuple[Cell, ...]


Message = Annotated[Progress | Forecast, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Progress | Forecast] = TypeAdapter(Message)

OnProgress = Callable[[str, int, int], None]
"""Told what goes on, how much of it is done, and of how much."""


class ForecastFailed(RuntimeError):
    """The process that forecasts ended early; the message holds its last words."""


def cell_key(cell: Cell) -> str:
    """What forecasts are found by: rounds of a cell share theirs."""
    return cell.identity("round")


def forecast(
    cells: Sequence[Cell],
    on_progress: OnProgress = lambda what, done, total: None,
    *,
    stall_s: float = _STALL_S,
) -> dict[str, Forecast]:
    """Calibrate this machine, replay the cells' streams without weights, and predict, in a process of its own.

    Returns:
        Forecasts by `cell_key`.

    Raises:
        ForecastFailed: the process ended before all was said, or said nothing for `stall_s` and was ended.
    """
    distinct = {cell_key(cell): cell for cell in cells}
    mark = uuid.uuid4().hex
    found: dict[str, Forecast] = {}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "suite.run.forecaster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
            env={**worker_environment(), MARK: mark},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        watch = _Watch(stall_s, lambda: kill_tree(process, mark=mark))
        try:
            _say(process.stdin, Request(cells=tuple(distinct.values())))
            for line in process.stdout:
                watch.heard()
                message = _ADAPTER.validate_json(line)
                if isinstance(message, Progress):
                    on_progress(message.what, message.done, message.total)
                else:
                    found[message.cell] = message
        except ValueError as error:
            raise ForecastFailed(f"it sent a line that is no message: {str(error).splitlines()[0]}") from error
        finally:
            watch.stop()
            process.stdin.close()
            kill_tree(process, mark=mark)
            process.stdout.close()
        if watch.ended:
            raise ForecastFailed(f"it said nothing for {stall_s:.0f} s and was ended{_last_line(log)}")
        if found.keys() != distinct.keys():
            raise ForecastFailed(f"it ended with exit code {process.returncode}{_last_line(log)}")
    return found


class _Watch:
    """Ends a process that says nothing for too long.

    Attributes:
        ended: Whether it had to.
    """

    def __init__(self, stall_s: float, end: Callable[[], None]) -> None:
        self.ended = False
        self._stall_s = stall_s
        self._end = end
        self._timer = self._started()

    def heard(self) -> None:
        """A sign of life."""
        self._timer.cancel()
        self._timer = self._started()

    def stop(self) -> None:
        """Nothing more is awaited."""
        self._timer.cancel()

    def _started(self) -> threading.Timer:
        timer = threading.Timer(self._stall_s, self._fire)
        timer.daemon = True
        timer.start()
        return timer

    def _fire(self) -> None:
        self.ended = True
        self._end()


def _say(pipe: IO[bytes], request: Request) -> None:
    try:
        pipe.write(request.model_dump_json().encode() + b"\n")
        pipe.flush()
    except BrokenPipeError:
        pass  # it died at once; what it said is in the log


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, 2) - _LAST_WORDS))
    said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return f", its last line: {said[-1]}" if said else ""
