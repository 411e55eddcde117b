"""Stand-ins for what a run starts, tells and watches."""

import io

import numpy as np

from suite.records.measured import Conditions, MachineState, Turns
from suite.records.record import Check, Status, Verification
from suite.run.console.display import Display
from suite.run.process import Limits
from suite.run.turns.groups import BASELINE_REPEAT, MemoryNeed
from suite.run.worker import CellResult, Progress
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import environment, measurement, optimum, record, verification

TIMES = Turns(contest="c", way="one process", steps=1, system_s=((0.5, 0.5), (0.5, 0.5)))
GENEROUS = Limits(wall_s=40, stall_s=40, host_bytes=8 * 10**9)
OPTIMUM = optimum().model_copy(update={"first_step": 3, "steps": 2})
"""Over the counted steps of `tiny_cell`."""
GB = 10**9
ROOM = MemoryNeed(host=100 * GB, device=100 * GB, disk=100 * GB)
REPEAT = "full_gpu" + BASELINE_REPEAT
EXACT = Verification(checks=(Check(name="sgd: losses", passed=True, max_difference=0.0, tolerance=0.0),))
CELLS = [tiny_cell("reference"), tiny_cell("full_gpu"), tiny_cell("freq_cache")]


def entrant(system, *, host_gb=1, memory=None, cell=None, **changes):
    """A record of a tiny cell on a CPU that held so much, and `memory` elsewhere, and is `changes`."""
    of = tiny_cell(system, **(cell or {}))
    found = measurement(of)
    peaks = {"host_peak_rss_bytes": (1 + host_gb) * GB, "host_baseline_rss_bytes": GB}
    none = {"device_used_bytes": None, "device_reserved_bytes": None, "anatomy_bytes": {}}
    held = found.memory.model_copy(update={**peaks, **none, **(memory or {})})
    made = record(system, where=environment(gpu=False))
    parts = {"measurement": found.model_copy(update={"memory": held, **changes}), "verification": EXACT, "turns": None}
    return made.model_copy(update={"cell": of, **parts})


def times(cell):
    """As many turns as a cell asks for: `TIMES` of a tiny cell."""
    system_s = ((0.5,) * cell.turns,) * cell.builds
    return TIMES.model_copy(update={"steps": cell.turn_steps, "system_s": system_s})


def statuses(ran):
    """How the cells of a run ended, by system."""
    return {record.cell.system: record.status.value for record in ran.records}


class Notebook(Display):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__(io.StringIO())
        self.warnings, self.notes, self.finished, self.opening = [], [], [], None

    def note(self, text):
        self.notes.append(text)

    def warn(self, text):
        self.warnings.append(text)

    def run_started(self, cells, done_already):
        super().run_started(cells, done_already)
        self.opening = (cells, done_already)

    def cell_finished(self, status, *, wall_s, summary, reason=""):
        self.finished.append((self._place.partition(" ")[2], status, summary, reason))


class Workers:
    """Stands where processes are started: answers by system, and remembers who was asked."""

    def __init__(self, **outcomes):
        self.outcomes, self.started, self.limits = outcomes, [], []
        self.weights = {}

    def __call__(self, request, *, limits, log, on_progress):
        cell, rows = request.cell, request.rows
        rows.parent.mkdir(parents=True, exist_ok=True)
        weights = np.eye(3) * self.weights.get(cell.system, 1.0)
        numbers = {"early/weight": weights, "early/moved": np.ones(3)}
        np.savez(rows, table=np.array(["t"] * 3), id=np.arange(3), **numbers)
        self.started.append(cell.system)
        self.limits.append(limits)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("what the worker printed")
        on_progress(Progress(phase="train", step=1, steps=2))
        outcome = self.outcomes.get(cell.system, Status.OK)
        if outcome is Status.OK:
            horizon = {"first_step": cell.steps - cell.counted_steps, "steps": cell.counted_steps}
            return CellResult(
                status=outcome,
                phase="evaluate",
                wall_s=2.0,
                verification=verification(),
                measurement=measurement(cell),
                optimum=OPTIMUM.model_copy(update=horizon),
            )
        return CellResult(status=outcome, reason="because", phase="train", wall_s=2.0)


class Turned:
    """Stands where systems take turns: every one gets its times."""

    sessions = []

    @staticmethod
    def take(records, log, *, display, timeout_s):
        Turned.sessions.append([record.cell.system for record in records])
        return [record.model_copy(update={"turns": times(record.cell)}) for record in records]


class QuietMachine:
    """Stands where the machine is watched: whatever else runs beside the tests, nothing was disturbed."""

    seen = Conditions(start=MachineState(load=0.5), end=MachineState(), others_cpu_share=0.0)

    wall_s = 10.0

    def __init__(self, *, cuda):
        pass

    def conditions(self):
        return self.seen
