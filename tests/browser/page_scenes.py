"""Records for the page: a GPU and a CPU, several cache sizes, failures, and names made of markup."""

from __future__ import annotations

from pathlib import Path

from suite.records.record import Record, Status
from suite.records.store import RecordStore
from suite.report.publish import Source, read
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, record, rounds
from tests.unit.suite.report.report_scenes import with_memory

MARKUP = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script><!--"
MIB = 2**20


def sized(system: str, cache_ratio: float, speed: float, *, device_bytes: int) -> list[Record]:
    """Rounds on the GPU at a cache ratio, with so many device bytes and so many times the baseline's speed."""
    setting = {"cache_ratio": cache_ratio, "workload": "avazu"}
    made = rounds(system, [speed * BASELINE] * 3, setting=setting, offloads=system != "full_gpu")
    return with_memory(made, anatomy_bytes={"device/rows": device_bytes})


def sweep_records() -> list[Record]:
    """Three systems on a GPU at three cache sizes: budgets from 64 MiB to 2 GiB, ties, a system that no longer fits."""
    return [
        *sized("cache[policy=lfu]", 0.01, 0.3, device_bytes=60 * MIB),
        *sized("cache[policy=lfu]", 0.05, 0.43, device_bytes=300 * MIB),
        *sized("cache[policy=lfu]", 0.2, 0.42, device_bytes=1_100 * MIB),
        *sized("fbgemm_uvm_caching[policy=lru]", 0.01, 0.301, device_bytes=90 * MIB),
        *sized("fbgemm_uvm_caching[policy=lru]", 0.05, 0.4, device_bytes=400 * MIB),
        *(run for ratio in (0.01, 0.05, 0.2) for run in sized("full_gpu", ratio, 1, device_bytes=2_000 * MIB)),
        *rounds(
            "wrong",
            [900_000, 910_000],
            setting={"workload": "avazu", "cache_ratio": 0.01},
            status=Status.WRONG_ANSWER,
            reason="rows differ by 0.5",
        ),
    ]


def fabricated_records() -> list[Record]:
    """Everything that a page must cope with."""
    return [
        *gpu_run(),
        *cpu_run(),
        *sweep_records(),
        record(MARKUP, notes=(SCRIPT,), where=environment(os=SCRIPT)),
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
