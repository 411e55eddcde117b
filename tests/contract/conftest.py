"""The quick tests take two optimizers and the default variants; the full matrix is for `make test-all`."""

from pathlib import Path

import pytest

from systems.contract import OptimizerKind

QUICK_KINDS = (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD)


@pytest.hookimpl(tryfirst=True)  # before the slow ones are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        chosen = item.callspec.params if hasattr(item, "callspec") else {}
        if chosen.get("kind", QUICK_KINDS[0]) not in QUICK_KINDS or "[" in str(chosen.get("variant", "")):
            item.add_marker(pytest.mark.slow)
