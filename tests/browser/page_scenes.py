"""Records for the page: a GPU and a CPU, contests with several cache sizes, failures, and names made of markup."""

from __future__ import annotations

from pathlib import Path

from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.report.source import Source, read
from tests.unit.suite.fabricate import cpu_run, environment, gpu_run, record, rounds

MARKUP = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script><!--"
MIB = 2**20


def sized(system: str, ratio: float, speeds: list[float], *, device_bytes: int) -> list[Record]:
    """Rounds on the GPU with a cache ratio and so many device bytes by the driver."""
    made = rounds(system, speeds, setting={"cache_ratio": ratio, "workload": "avazu"})
    return [_with_device_bytes(run, device_bytes) for run in made]


def contest_records() -> list[Record]:
    """A contest of three systems on a GPU: budgets from 64 MiB to 2 GiB, ties, a system that no longer fits."""
    return [
        *sized("cache[policy=lfu]", 0.01, [500_000, 505_000, 498_000], device_bytes=60 * MIB),
        *sized("cache[policy=lfu]", 0.05, [700_000, 707_000, 695_000], device_bytes=300 * MIB),
        *sized("cache[policy=lfu]", 0.2, [690_000, 699_000, 694_000], device_bytes=1_100 * MIB),
        *sized("fbgemm_uvm_caching[policy=lru]", 0.01, [510_000, 499_000, 503_000], device_bytes=90 * MIB),
        *sized("fbgemm_uvm_caching[policy=lru]", 0.05, [640_000, 610_000, 650_000], device_bytes=400 * MIB),
        *sized("full_gpu", 0.2, [1_600_000, 1_640_000, 1_620_000], device_bytes=2_000 * MIB),
        *rounds(
            "wrong",
            [900_000, 910_000],
            setting={"workload": "avazu"},
            status=Status.WRONG_ANSWER,
            reason="rows differ by 0.5",
        ),
    ]


def fabricated_records() -> list[Record]:
    """Everything that a page must cope with."""
    return [
        *gpu_run(),
        *cpu_run(),
        *contest_records(),
        record(MARKUP, samples_per_s=123_456.0, notes=(SCRIPT,), where=environment(os=SCRIPT)),
        record("broken", status=Status.CRASHED, reason=SCRIPT, phase="train"),
        # One good round and one wrong answer: no number of either may be shown
        record("half", samples_per_s=777_777.0),
        record("half", round=1, status=Status.WRONG_ANSWER, reason="loss differs", phase="verify"),
    ]


def written(records: list[Record], root: Path) -> Source:
    """The records as files below a results directory, read back."""
    store = RecordStore(root)
    for one in records:
        store.write(one)
    return read([root])


def _with_device_bytes(run: Record, size: int) -> Record:
    assert run.measurement is not None
    memory = run.measurement.memory.model_copy(update={"device_used_bytes": size})
    return run.model_copy(update={"measurement": run.measurement.model_copy(update={"memory": memory})})
