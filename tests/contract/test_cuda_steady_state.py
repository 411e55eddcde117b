"""On a CUDA device: in the steady state no call of the training thread waits for the device."""

from collections.abc import Iterator

import pytest
import torch
from scenes import build, table
from torchrec import KeyedJaggedTensor

from systems.contract import CacheRatio, OptimizerKind

pytestmark = pytest.mark.cuda

TABLES = (table("users", 20_000, 16), table("shops", 3_000, 16))
BATCH, BATCHES, SETTLED = 512, 60, 30


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """Any call that makes the host wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def batches() -> list[KeyedJaggedTensor]:
    """On the host, ids that keep missing."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.ones(2 * BATCH, dtype=torch.int64)
    made = []
    for _ in range(BATCHES):
        ids = [(torch.rand(BATCH, generator=draw) ** 3 * t.num_embeddings).long() for t in TABLES]
        made.append(KeyedJaggedTensor([t.name for t in TABLES], torch.cat(ids), lengths=lengths))
    return made


def test_the_debug_mode_catches_what_it_is_for(no_synchronisation: None, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device=device).sum().item()


@pytest.mark.parametrize("tier", ["tier=host", "tier=pinned", "exchange=device,tier=pinned"])
@pytest.mark.parametrize("look_ahead", [1, 4, 16])
@pytest.mark.parametrize("kind", [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD])
def test_training_with_the_cache_never_waits_for_the_device(
    tier: str, look_ahead: int, kind: OptimizerKind, device: torch.device, request: pytest.FixtureRequest
) -> None:
    system = build(
        f"freq_cache[policy=lru,look_ahead={look_ahead},{tier}]",
        device=device,
        tables=TABLES,
        kind=kind,
        budget=CacheRatio(ratio=0.1),
        batch_lookups=2 * BATCH,
    )
    coming = batches()
    announced = 0
    for step, features in enumerate(coming):
        if step == SETTLED:
            request.getfixturevalue("no_synchronisation")
        while announced < len(coming) and announced <= step + look_ahead:
            system.prefetch(coming[announced])
            announced += 1
        system(features).values().sum().backward()
    torch.cuda.set_sync_debug_mode("default")
    counters = system.counters()
    assert counters.unique_misses > 0  # rows moved both ways while nothing waited
    assert counters.rows_written_back > 0
