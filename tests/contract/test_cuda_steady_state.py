"""On a CUDA device: in the steady state no call of the training thread waits for the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
from scenes import build, table
from torchrec import KeyedJaggedTensor

from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.console.options import Options
from suite.run.plan import plan_cells
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


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls by which this thread waits for the device, and which the debug mode does not see."""
    own, found = threading.get_ident(), list[str]()

    def counted(what: str, call: Callable[..., object]) -> Callable[..., object]:
        def wait(*arguments: object) -> object:
            if threading.get_ident() == own:
                found.append(what)
            return call(*arguments)

        return wait

    for what, owner in {"event": torch.cuda.Event, "stream": torch.cuda.Stream, "device": torch.cuda}.items():
        monkeypatch.setattr(owner, "synchronize", counted(what, owner.synchronize))
    return found


def batches() -> list[KeyedJaggedTensor]:
    """On the host, ids that keep missing, but never more of them than staging has room for."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.ones(2 * BATCH, dtype=torch.int64)
    made = []
    for _ in range(BATCHES):
        ids = [(torch.rand(BATCH, generator=draw) ** 12 * t.num_embeddings).long() for t in TABLES]
        made.append(KeyedJaggedTensor([t.name for t in TABLES], torch.cat(ids), lengths=lengths))
    return made


def test_the_debug_mode_catches_what_it_is_for(no_synchronisation: None, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device=device).sum().item()


def test_waits_that_the_debug_mode_does_not_see_are_counted(waits: list[str], no_synchronisation: None) -> None:
    torch.cuda.current_stream().record_event().synchronize()
    assert waits[-1:] == ["event"]
    with suppress(RuntimeError):  # torch 2.14 sees this one
        torch.cuda.current_stream().synchronize()
    assert waits[-2:] == ["event", "stream"]


@pytest.mark.parametrize("tier", ["tier=host", "tier=pinned", "copy_engine=device,tier=pinned"])
@pytest.mark.parametrize("look_ahead", [1, 4, 16])
@pytest.mark.parametrize("kind", [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD])
def test_training_with_the_cache_never_waits_for_the_device(
    tier: str,
    look_ahead: int,
    kind: OptimizerKind,
    device: torch.device,
    request: pytest.FixtureRequest,
    waits: list[str],
) -> None:
    system = build(
        f"freq_cache[policy=lru,look_ahead={look_ahead},{tier}]",
        device=device,
        tables=TABLES,
        kind=kind,
        budget=CacheRatio(ratio=0.1),
        batch_lookups=16 * BATCH,  # of which an eighth is the room in staging
    )
    coming = batches()
    announced = 0
    for step, features in enumerate(coming):
        if step == SETTLED:
            request.getfixturevalue("no_synchronisation")
            waits.clear()
        while announced < len(coming) and announced <= step + look_ahead:
            system.prefetch(coming[announced])
            announced += 1
        system(features).values().sum().backward()
    assert not waits
    torch.cuda.set_sync_debug_mode("default")
    counters = system.counters()
    assert counters.unique_misses > 0  # rows moved both ways while nothing waited
    assert counters.rows_written_back > 0


@pytest.mark.parametrize("name", ["full_gpu", "freq_cache[look_ahead=4]", "fbgemm_uvm_caching[prefetch=on]"])
def test_a_whole_step_of_a_dlrm_never_waits_for_the_device(
    name: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    options = Options(systems=name, workloads="avazu", scale="smoke", steps=60)
    setup = CellSetup.of(plan_cells(options, device="cuda", host_bytes=1 << 40)[0][0])
    _, trainer = setup.build(in_process(setup.workload, device), total_steps=60, beat=lambda: None)
    trainer.run(SETTLED)
    of_dense_layers = {
        tensor.device.type
        for part, tensor in (*trainer._model.named_parameters(), *trainer._model.named_buffers())
        if not part.startswith("sparse_arch.")
    }
    assert of_dense_layers == {"cuda"}  # from a CPU they would be copied at every step
    trainer._batches.fill(20)
    request.getfixturevalue("no_synchronisation")
    for _ in range(10):
        trainer._step(trainer._next())
