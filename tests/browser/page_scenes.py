"""Records for the page: a GPU and a CPU, several cache sizes, failures, and names made of markup."""

from __future__ import annotations

from suite.records.record import Record, Status
from tests.unit.suite.fabricate import cpu_run, environment, gpu_run, record
from tests.unit.suite.report.report_scenes import sweep

MARKUP = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script><!--"


def fabricated_records() -> list[Record]:
    """Everything that a page must cope with."""
    return [
        *gpu_run(),
        *cpu_run(),
        *sweep("avazu"),
        record(MARKUP, notes=(SCRIPT,), where=environment(os=SCRIPT)),
        record("broken", status=Status.CRASHED, reason=SCRIPT, phase="train"),
        # One good round and one wrong answer: no number of either may be shown
        record("half", samples_per_s=777_777.0),
        record("half", round=1, status=Status.WRONG_ANSWER, reason="loss differs", phase="verify"),
    ]
