"""What is seen of the machine around a cell, and when that counts as a disturbance."""

import os
import types

import psutil
import pytest

from suite.records.measured import Conditions, MachineState
from suite.run import conditions
from suite.run.conditions import MachineMonitor, interference


class Machine:
    """Two CPUs whose time a test can let pass."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self.user = self.steal = self.idle = self.own = self.children = 0.0
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(psutil, "cpu_times", self._rows)
        monkeypatch.setattr(os, "times", self._times)
        monkeypatch.setattr(conditions.time, "monotonic", lambda: self.now)

    def passes(self, seconds, *, own=0.0, children=0.0, others=0.0, stolen=0.0):
        self.now += seconds
        self.own += own
        self.children += children
        self.user += own + children + others
        self.steal += stolen

    def _rows(self, percpu):
        row = types.SimpleNamespace(user=self.user / 4, nice=0.0, system=self.user / 4, steal=self.steal / 2)
        return [row, row]

    def _times(self):
        half = self.children / 2
        return types.SimpleNamespace(user=self.own, system=0.0, children_user=half, children_system=half)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_time_of_the_run_and_its_cell_is_not_that_of_others(machine):
    watch = MachineMonitor(cuda=False)
    machine.passes(10, own=1, children=15, others=3, stolen=0.4)
    seen = watch.conditions()
    assert seen.others_cpu_share == pytest.approx(3 / 20)
    assert seen.stolen_cpu_share == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("start", "end", "shares", "sentence"),
    [
        (
            {"load": 3.14},
            {},
            {"others_cpu_share": 0.37},
            "other processes took 37% of the CPUs while turns were taken (load 3.1 at",
        ),
        ({}, {}, {"stolen_cpu_share": 0.03}, "the hypervisor gave 3% of the CPU time to other guests"),
        ({"cpu_throttled": 7}, {"cpu_throttled": 12}, {}, "heat slowed down CPU cores 5 times"),
        ({"gpu_throttled_s": 1.0}, {"gpu_throttled_s": 3.5}, {}, "heat held back the GPU's clock for 2.5 s"),
        ({"gpu_processes": 0}, {"gpu_processes": 2}, {}, "2 other processes had the GPU too"),
    ],
)
def test_each_disturbance_is_a_sentence(start, end, shares, sentence):
    seen = Conditions(start=MachineState(**start), end=MachineState(**end), **shares)
    (said,) = interference(seen, wall_s=30)
    assert said.startswith(sentence)


def test_quiet_machine_is_not_called_disturbed_because_of_the_cell_itself():
    start = MachineState(load=2.0, cpu_throttled=7, gpu_throttled_s=1.0, gpu_processes=0)
    end = start.model_copy(update={"load": 9.0, "gpu_throttled_s": 1.1})
    seen = Conditions(start=start, end=end, others_cpu_share=0.02, stolen_cpu_share=0.005)
    assert interference(seen, wall_s=30) == ()
    assert interference(Conditions(start=MachineState(), end=MachineState()), wall_s=30) == ()
