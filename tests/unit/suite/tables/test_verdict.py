"""Verdicts on made-up records whose numbers say what must be said.

`even` makes the interval of a ratio: three builds, a step apart in log speed, give Student's interval of `T` steps to
either side, so a step of `even(0.02)` lets the ratio be 2 % higher.
"""

from math import log, sqrt
from typing import Any

import pytest
from scipy.stats import t

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.tables.verdict import verdict
from tests.unit.suite.fabricate import BASELINE, record, shuffled, verification

T = float(t.ppf(0.975, df=2)) / sqrt(3)
CACHE = {"device/rows": 6_400_000, "device/staging": 1_810_000, "host/rows": 128_000_000}
ALL = {"device/rows": 128_000_000}
NONE = {"host/rows": 128_000_000}


def even(share: float) -> float:
    """The noise of builds that lets a ratio be higher by this share."""
    return log(1 + share) / T


def ran(system: str, speed: float, within: float = 0.0, *, anatomy: dict[str, int], **changes: Any) -> Record:
    """A system at so many times the baseline's speed, with an interval that reaches higher by the share `within`."""
    return record(system, samples_per_s=speed * BASELINE, noise=even(within), anatomy=anatomy, **changes)


CPU = {"setting": {"device": "cpu", "cache_ratio": 0.05}, "offloads": False}


def cpu_baseline(floor: float, copy: float = 1.0) -> Record:
    return ran("full_gpu", copy, floor, anatomy=ALL, **CPU)


def cpu(system: str, speed: float, within: float = 0.0, **changes: Any) -> Record:
    return ran(system, speed, within, anatomy=CACHE if "cache" in system else NONE, **{**CPU, **changes})


def gpu(system: str, speed: float, within: float = 0.0, **changes: Any) -> Record:
    anatomy = ALL if system == "full_gpu" else CACHE if "cach" in system else NONE
    return ran(system, speed, within, anatomy=anatomy, **changes)


def failed(system: str, status: Status, **changes: Any) -> Record:
    return record(system, status=status, reason="needs 9 GB", phase="build", **changes)


HERE = "On this CPU with cache ratio 5 %, beside full_gpu: "
THERE = "On NVIDIA H100 80GB HBM3 with cache ratio 1 %, beside full_gpu: "

SCENES: dict[str, tuple[list[Record], str]] = {
    "caches that cost alike, a kernel that is the baseline's own, and a wrapper": (
        [
            cpu_baseline(0.02),
            cpu("freq_cache", 0.93),
            cpu("freq_cache[policy=lfu]", 0.931),
            cpu("torchrec_uvm", 0.97),
            cpu("fbgemm_uvm", 1.0, same_kernel_as="full_gpu"),
            cpu("reference", 0.8),
            cpu("no_embeddings", 1.5, checked=verification(passed=False)),
        ],
        HERE + "freq_cache and freq_cache[policy=lfu] cost 5 to 10 % of throughput; torchrec_uvm stays within 5 % of "
        "its throughput, without offload.",
    ),
    "one cache faster than the baseline": (
        [cpu_baseline(0.01), cpu("freq_cache", 1.27, 0.04)],
        HERE + "freq_cache gains 20 to 35 % of throughput.",
    ),
    "alike in speed, of which one saves bytes and two take more": (
        [
            gpu("full_gpu", 1.0, 0.01),
            gpu("freq_cache", 0.93),
            *(ran(f"big_{size}", 0.93, anatomy={"device/rows": size * 10**6}) for size in (134, 160)),
        ],
        THERE + "big_134 costs 5 to 10 % of throughput and takes 5 % more device bytes; big_160 costs 5 to 10 % of "
        "throughput and takes 25 % more device bytes; freq_cache costs 5 to 10 % of throughput and saves 94 % of the "
        "device bytes; fastest of those that offload: big_134, big_160 and freq_cache, too close to call.",
    ),
    "a copy of the baseline that seems 5 % slower hides a cost of 4 %": (
        [cpu_baseline(0.0, copy=0.95), cpu("freq_cache", 0.96)],
        HERE + "freq_cache costs up to 10 % of throughput.",
    ),
    "noise above everything": (
        [cpu_baseline(0.3), cpu("freq_cache", 0.93), cpu("torchrec_uvm", 0.9, 0.02)],
        "Nothing can be said of freq_cache and torchrec_uvm: noise hides up to 30 %.",
    ),
    "noise above one system, and one that was timed alone": (
        [
            cpu_baseline(0.01),
            cpu("freq_cache", 0.80, 0.02),
            cpu("torchrec_uvm", 0.9, 0.4),
            cpu("hot_split", 0.9, baseline=None),
        ],
        HERE + "freq_cache costs 15 to 25 % of throughput; nothing can be said of hot_split: timed alone, not beside "
        "full_gpu; nothing can be said of torchrec_uvm: noise hides up to 40 %.",
    ),
    "one build": (
        [
            ran("full_gpu", 1, anatomy=ALL, setting={"builds": 1}),
            ran("freq_cache", 0.5, anatomy=CACHE, setting={"builds": 1}),
        ],
        "Nothing can be said of freq_cache: there is no interval.",
    ),
    "offload with two in front, of which one is too noisy to stand beside the baseline": (
        [
            gpu("full_gpu", 1.0, 0.01),
            gpu("freq_cache", 0.92, 0.01),
            gpu("fbgemm_uvm_caching", 0.95, 0.30),
            gpu("torchrec_uvm", 0.10, 0.01),
        ],
        THERE + "freq_cache costs 5 to 10 % of throughput and saves 94 % of the device bytes; torchrec_uvm costs 85 to "
        "95 % of throughput and saves 100 % of the device bytes; fastest of those that offload: fbgemm_uvm_caching and "
        "freq_cache, too close to call; nothing can be said of fbgemm_uvm_caching: noise hides up to 30 %.",
    ),
    "a baseline that did not fit": (
        [
            failed("full_gpu", Status.OOM_DEVICE),
            gpu("freq_cache", 0.9, 0.01, baseline=None, timed={"contest": "theirs"}),
            gpu("torchrec_uvm", 0.2, 0.01, baseline=None, timed={"contest": "theirs"}),
        ],
        "Nothing can be said beside full_gpu, which ended oom_device in phase build: needs 9 GB; fastest of those that "
        "offload: freq_cache.",
    ),
    "a baseline whose record was not kept": (
        [gpu("freq_cache", 0.9, 0.01), gpu("torchrec_uvm", 0.2, 0.01)],
        THERE + "freq_cache costs 5 to 15 % of throughput; torchrec_uvm costs 75 to 85 % of throughput; fastest of "
        "those that offload: freq_cache.",
    ),
    "no baseline, and nobody beside another": (
        [gpu("freq_cache", 0.9, baseline=None), gpu("torchrec_uvm", 0.2, baseline=None)],
        "Nothing can be said beside full_gpu, which took no part.",
    ),
    "yardsticks, and a system with a bad round": (
        [
            gpu("full_gpu", 1.0, 0.01),
            gpu("reference", 0.5),
            gpu("no_embeddings", 1.5, checked=verification(passed=False)),
            gpu("freq_cache", 0.9),
            failed("freq_cache", Status.CRASHED, round=1),
        ],
        "Nothing to compare: no system beside full_gpu can be judged.",
    ),
    "approximate systems alone, which have sentences of their own": (
        [record("hashed", exact=False), record("qr", exact=False)],
        "",
    ),
    "everything failed": (
        [failed("full_gpu", Status.OOM_DEVICE), failed("freq_cache", Status.CRASHED)],
        "Nothing was measured: no system ended ok.",
    ),
    "wrong answers, and an AUROC that is not the baseline's": (
        [
            gpu("full_gpu", 1.0, 0.01),
            gpu("freq_cache", 0.90, 0.01),
            gpu("caching_halves", 1.1, 0.01, auroc=0.7811),
            gpu("reference", 0.5, 0.01, auroc=0.7912),
            failed("stranger", Status.WRONG_ANSWER, checked=verification(passed=False)),
        ],
        THERE + "freq_cache costs 5 to 15 % of throughput and saves 94 % of the device bytes; do not choose "
        "caching_halves by speed: its AUROC is 0.7811 where that of full_gpu is 0.7911; do not use stranger: wrong "
        "answers.",
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_verdict(name: str) -> None:
    records, expected = SCENES[name]
    for seed in range(3):
        (group,) = group_records(shuffled(records, seed))
        assert verdict(group) == expected


def test_the_fastest_is_found_by_ratios_not_by_paces_of_different_times():
    """The second group of a contest raced when the machine was 10 % slower."""
    slow = ran("freq_cache", 0.50, 0.001, anatomy=CACHE)
    later = {"baseline": 0.9 * BASELINE, "timed": {"contest": "later", "way": "several groups"}}
    fast = ran("torchrec_uvm", 0.495, 0.001, anatomy=CACHE, **later)
    (group,) = group_records([ran("full_gpu", 1.0, 0.001, anatomy=ALL), slow, fast])
    assert "fastest of those that offload: torchrec_uvm." in verdict(group)


def test_whoever_cannot_be_told_from_the_fastest_is_named_with_it_also_behind_a_slower_one():
    others = [ran("torchrec_uvm", 0.47, 0.001, anatomy=CACHE), ran("hot_split", 0.45, 0.5, anatomy=CACHE)]
    (group,) = group_records(
        [ran("full_gpu", 1.0, 0.001, anatomy=ALL), ran("cache", 0.5, 0.001, anatomy=CACHE), *others]
    )
    assert "fastest of those that offload: cache and hot_split, too close to call" in verdict(group)
