"""The child process behind `suite.run.forecast`, started as `python -m suite.run.forecaster`.

The cells come as one line of JSON on standard input, messages leave through what was standard output when it started;
what libraries print goes to standard error. When standard input closes, the parent has gone, and the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import BinaryIO, TypeVar

from suite.advise.calibration import Calibration, CalibrationFailed, calibrate
from suite.advise.case import Case
from suite.advise.counts import count_cell
from suite.advise.model import NotCalibrated, predict_cell
from suite.records.record import Cell, Optimum, Prediction
from suite.run.forecast import Forecast, Progress, Request, cell_key
from suite.run.stream import open_workload
from suite.simulate.models import registry as models
from suite.simulate.models.model import CannotReplay, RowBytes, Setting, Span, replay
from suite.simulate.traces.trace import Trace, WorkloadTrace
from systems.contract import Verdict
from systems.registry import CONTROLS, Variant
from workloads.batch import Workload

CALIBRATION_S = 12.0
"""Measuring per shape of a step; large steps take longer, for each is measured three times at least."""

Send = Callable[[Progress | Forecast], None]
_Answer = TypeVar("_Answer")


def main() -> None:
    """Forecast the cells that standard input names."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = Request.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    run(request.cells, _sender(pipe))
    sys.stdout.flush()
    os._exit(0)  # a library's exit handlers must not turn what is done into a failure


def run(cells: Sequence[Cell], send: Send) -> None:
    """Send a forecast for every cell, whatever becomes of the others."""
    cases: dict[str, Case] = {}
    refused: dict[str, str] = {}
    for cell in cells:
        try:
            case = Case.of(cell, _workload(_stream_of(cell)))
            if case.support.verdict is Verdict.YES:
                cases[cell_key(cell)] = case
                _ = case.kernel  # raises for a system that no cost is known of
            else:
                refused[cell_key(cell)] = case.support.reason
        except Exception as error:
            refused[cell_key(cell)] = _said(error)
            cases.pop(cell_key(cell), None)
    calibration, why, calibrated_at = None, "", datetime.now(UTC).isoformat(timespec="seconds")
    try:
        calibration = _calibrated(list(cases.values()), send) if cases else None
    except CalibrationFailed as error:
        why = str(error)
    for done, cell in enumerate(cells):
        key = cell_key(cell)
        send(Progress(what=f"replaying {cell.label}", done=done, total=len(cells)))
        if key in refused:
            send(Forecast(cell=key, why=refused[key]))
            continue
        prediction, no_prediction = _attempt(partial(_predicted, cell, calibration, why, at=calibrated_at))
        optimum, no_optimum = _attempt(partial(_optimum, cell, cases[key]))
        reasons = "; ".join(dict.fromkeys(reason for reason in (no_prediction, no_optimum) if reason))
        send(Forecast(cell=key, prediction=prediction, optimum=optimum, why=reasons))


def _attempt(work: Callable[[], _Answer]) -> tuple[_Answer | None, str]:
    """What a forecast says, or why it says nothing; what nobody foresaw is in the log with its traceback."""
    try:
        return work(), ""
    except (CannotReplay, NotCalibrated) as error:
        return None, str(error)
    except Exception as error:
        traceback.print_exc()
        return None, _said(error)


def _said(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no message'}"


def _calibrated(cases: Sequence[Case], send: Send) -> Calibration:
    shapes = list(dict.fromkeys(case.shape for case in cases))
    kernels = list(dict.fromkeys(case.kernel for case in cases))

    def tell(what: str, done: int, total: int) -> None:
        send(Progress(what=what, done=done, total=total))

    return calibrate(shapes, kernels, seconds=CALIBRATION_S * len(shapes), on_progress=tell)


def _predicted(cell: Cell, calibration: Calibration | None, why: str, *, at: str) -> Prediction:
    if calibration is None:
        raise NotCalibrated(why)
    made = predict_cell(cell, calibration, count_cell(cell), workload=_workload(_stream_of(cell)))
    return Prediction(
        steps_per_s=1 / made.step_s,
        samples_per_s=made.samples_per_s,
        terms_s=made.terms_s,
        hidden_s=made.hidden_s,
        hit_rate=made.hit_rate,
        calibrated_at=at,
    )


def _optimum(cell: Cell, case: Case) -> Optimum | None:
    """What Belady's rule misses and moves in the steps whose traffic is counted; None where nothing is cached."""
    if not case.slots or Variant.parse(cell.system).name in CONTROLS:
        return None
    bypass = "off" if case.name == "freq_cache" else "on"  # fbgemm's cache may read a row past itself
    return _least(_stream_of(cell), case.slots, bypass, case.row_bytes)


@lru_cache
def _least(stream: Cell, slots: int, bypass: str, row_bytes: int) -> Optimum:
    optimizer = Case.of(stream, _workload(stream)).spec.optimizer
    row = RowBytes(weights=row_bytes, optimizer=optimizer, dim=stream.embedding_dim)
    span = Span(counted_from=stream.steps - stream.counted_steps, stop=stream.steps)
    setting = Setting(trace=_trace(stream), span=span, slots=slots)
    model = models.build(Variant("belady", (("bypass", bypass),)), setting)
    tally = replay(model)
    return Optimum(
        slots=slots,
        steps=tally.batches,
        unique_misses=tally.unique_misses,
        bytes_moved=sum(model.bytes_moved(tally, row)),
    )


def _stream_of(cell: Cell) -> Cell:
    """What cells share that train on the same stream, whatever their system."""
    return cell.model_copy(update={"system": "full_gpu", "round": 0})


@lru_cache(maxsize=2)
def _workload(stream: Cell) -> Workload:
    return open_workload(stream)


@lru_cache(maxsize=1)
def _trace(stream: Cell) -> Trace:
    return WorkloadTrace(_workload(stream), prefix=stream.frequency_prefix)


def _sender(pipe: BinaryIO) -> Send:
    def send(message: Progress | Forecast) -> None:
        pipe.write(message.model_dump_json().encode() + b"\n")
        pipe.flush()

    return send


def _die_with_parent() -> None:
    # not through sys.stdin: its lock, held here, would abort an interpreter that ends in order
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
