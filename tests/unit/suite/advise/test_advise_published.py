"""The paper's rows beside the model."""

from __future__ import annotations

import pytest
from advise_scenes import case

from suite.advise.case import Case
from suite.advise.costs import Counts
from suite.advise.counts import Replays
from suite.advise.described import DescribedCosts
from suite.advise.hardware import load_hardware
from suite.advise.model import predict
from suite.advise.paper import beside_published
from systems.contract import CacheRatio

COUNTS = Counts(lookups=49_152, distinct=9000, misses=900, rows_fetched=900, rows_written_back=900)
PAPER = case("full_gpu", device="cuda", batch_size=16_384, embedding_dim=128, top_mlp=(1024, 1024, 512, 256, 1))


class Fixed(Replays):
    """Counts the same whatever is asked."""

    def __init__(self) -> None:
        self.asked: list[Case] = []

    def counts(self, case: Case) -> Counts:
        self.asked.append(case)
        return COUNTS


def test_published_rows_stand_beside_the_systems_closest_to_theirs() -> None:
    replays = Fixed()
    ours, torchrec = beside_published(PAPER, replays, load_hardware("a100"), workload="avazu")
    assert (ours.published_system, ours.published_steps_per_s) == ("ColossalAI", 72)
    assert (torchrec.published_system, torchrec.published_steps_per_s) == ("torchrec", 111)
    assert [one.system for one in replays.asked] == ["freq_cache[policy=static]", "full_gpu"]
    assert replays.asked[0].budget == CacheRatio(ratio=0.01)
    costs = DescribedCosts(load_hardware("a100"), matmul="tf32")
    assert torchrec.modelled_tf32_steps_per_s == pytest.approx(1 / predict(PAPER, COUNTS, costs).step_s)
    assert torchrec.modelled_fp32_steps_per_s < torchrec.modelled_tf32_steps_per_s
    assert ours.modelled_tf32_steps_per_s < torchrec.modelled_tf32_steps_per_s


@pytest.mark.parametrize(
    ("hardware", "workload", "changes"),
    [
        ("h100", "avazu", {}),
        ("a100", "mlperf_dlrm_v2", {}),
        ("a100", "avazu", {"batch_size": 2048}),
        ("a100", "avazu", {"embedding_dim": 64}),
    ],
)
def test_nothing_is_compared_in_another_setting(hardware: str, workload: str, changes: dict[str, int]) -> None:
    setting = {"device": "cuda", "batch_size": 16_384, "embedding_dim": 128} | changes
    assert not beside_published(case("full_gpu", **setting), Fixed(), load_hardware(hardware), workload=workload)
