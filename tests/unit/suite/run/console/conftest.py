"""What tests of the command line share."""

import pytest

from suite.run import runner
from tests.unit.suite.run.console.command_scenes import prepared_kaggle


@pytest.fixture
def plain_output(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def no_workers(monkeypatch):
    """Nothing may be started."""

    def started(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(runner, "run_in_process", started)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """168 rows to train on, 14 to test on."""
    return prepared_kaggle(tmp_path_factory.mktemp("data"), rows=196)
