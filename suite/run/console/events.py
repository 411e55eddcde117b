"""The display for programs: one JSON object per event."""

from __future__ import annotations

import json
import time
from typing import TextIO

from suite.records.status import Status
from suite.run.console.display import Clock, Display


class JsonDisplay(Display):
    """One JSON object per event and line, each with its name under `event` and seconds since the start under `at_s`."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def note(self, text: str) -> None:
        """Event `note`."""
        self._emit("note", text=text)

    def warn(self, text: str) -> None:
        """Event `warning`."""
        self._emit("warning", text=text)

    def _on_run_started(self, done_already: int) -> None:
        self._emit("run_started", cells=self._cells, done_already=done_already)

    def _on_cell_started(self) -> None:
        self._emit("cell_started", index=self._index, label=self._label)

    def _on_progress(self) -> None:
        self._emit(
            "progress",
            index=self._index,
            phase=self._phase,
            step=self._step,
            steps=self._steps,
            steps_per_s=self._steps_per_s,
        )

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        self._emit(
            "cell_finished",
            index=self._index,
            label=label,
            status=status.value,
            wall_s=wall_s,
            summary=summary,
            reason=reason,
            remaining_s=self.remaining_s,
        )

    def _on_turns_started(self) -> None:
        self._emit("turns_started", label=self._label)

    def _on_turn(self) -> None:
        if self._standing is not None:
            self._emit("turn", **vars(self._standing))

    def _on_turns_finished(self, took_s: float) -> None:
        self._emit("turns_finished", label=self._label, wall_s=took_s)

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._emit("run_finished", elapsed_s=elapsed_s)

    def _emit(self, event: str, **values: object) -> None:
        line = {"event": event, "at_s": round(self._clock() - self._run_start, 3), **values}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()
