"""Shared by the micro-benchmarks: whether they are on, and what a file records of the machine."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from turns import Turns

from suite.records.environment import capture

sys.path.append(str(Path(__file__).resolve().parents[2] / "results" / "cache"))  # its programs have the planners
_RECORDED = {"machine", "cpu", "cores", "gpu", "python", "packages", "code", "commit", "dirty"}
"""Of the environment, in every benchmark's `extra_info`."""


@pytest.fixture(scope="session")
def environment() -> dict[str, Any]:
    """The machine, its packages and the code."""
    return capture(threads=torch.get_num_threads()).model_dump(mode="json", include=_RECORDED)


@pytest.fixture(scope="session")
def full_size(pytestconfig: pytest.Config) -> bool:
    """Whether benchmarks are on: then sizes are worth measuring, else quick to test."""
    return bool(pytestconfig.getoption("benchmark_enable"))


@pytest.fixture
def turns(benchmark: BenchmarkFixture, environment: dict[str, Any], pytestconfig: pytest.Config) -> Turns:
    """The benchmark of this test; both sides are timed by pytest-benchmark's clock."""
    return Turns(benchmark, environment, pkgutil.resolve_name(pytestconfig.getoption("benchmark_timer")))


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Leave out the host's name, and clock rates: these change on one machine (pytest-benchmark #255)."""
    del machine_info["node"]
    machine_info["cpu"] = {key: value for key, value in machine_info["cpu"].items() if not key.startswith("hz_")}
