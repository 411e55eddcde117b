"""Training whose rows the device exchanges by itself is plain training, and no thread of the host moves a row.

On a CPU Triton interprets the kernel, also where it plays a device that does everything as late as it may.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from systems import registry
from systems.contract import OptimizerKind
from systems.freq_cache import arguments
from systems.freq_cache.cache.mover import Writer
from systems.freq_cache.cache.staging import D2HCopy
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier
from tests.contract.scenes import assert_same, ragged, snapshot, spec_of, train
from tests.faults.freq_cache_training import batch, learn, plain_after, started
from tests.unit.systems.freq_cache import lazy_device

pytest.importorskip("triton")
VARIANT = "freq_cache[exchange=device,tier=pinned]"


@pytest.fixture(autouse=True)
def interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the variant is refused; Triton runs its kernel there all the same."""
    if device.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        refused = arguments.refused
        monkeypatch.setattr(arguments, "refused", lambda spec: "" if spec.device.type == "cpu" else refused(spec))
    import systems.freq_cache.tiers.copy_kernels  # noqa: F401 - in this environment


@torch.library.custom_op("tests_of_the_cache::exchange", mutates_args=("records", "packed"))
def _queued(records: Tensor, rows: Tensor, packed: Tensor, gathers: bool) -> None:
    """The kernel as an operator, which a stream can keep for later."""
    from systems.freq_cache.tiers import copy_kernels

    copy_kernels.copy_rows(records, rows, packed, gathers=gathers)


@pytest.mark.parametrize(
    ("kind", "slow_rows"),
    [
        (OptimizerKind.SGD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp16"),
        (OptimizerKind.ADAGRAD, "int8"),
    ],
)
def test_rows_and_state_are_those_of_the_staged_way_bit_for_bit(
    kind: OptimizerKind, slow_rows: str, device: torch.device
) -> None:
    found = []
    for exchange in ("device", "staged"):
        name = f"freq_cache[exchange={exchange},policy=lru,slow_rows={slow_rows},tier=pinned]"
        system, spec = spec_of(name, device=device, kind=kind)
        trained = system(spec)
        pooled = [train(trained, ragged(seed, batch=2, longest=2), seed) for seed in range(8)]
        assert trained.counters().rows_written_back > 0
        found.append((pooled, snapshot(trained)))
    (by_device, rows_by_device), (staged, rows_staged) = found
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(by_device, staged, strict=True))
    assert_same(rows_by_device, rows_staged)


@pytest.mark.parametrize("look_ahead", [0, 1, 4])
@pytest.mark.parametrize("batch_lookups", [32, 1000])
@pytest.mark.parametrize("gathers_early", [False, True])
def test_training_on_a_device_that_does_everything_late_or_gathers_early_is_plain_training(
    look_ahead: int, batch_lookups: int, gathers_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("the kernel is compiled here: memory of the host is not its to read")
    from systems.freq_cache.tiers import copy_kernels

    def gather(records: Tensor, rows: Tensor, out: Tensor) -> None:
        if gathers_early:
            stream = collection.caches[0]._mover.transfer._in
            with lazy_device.RUNNING:  # Triton interprets in one thread at a time
                stream.run(len(stream.work))  # what it is queued behind
                copy_kernels.copy_rows(records, rows, out, gathers=True)
        else:
            _queued(records, rows, out, True)

    monkeypatch.setattr(copy_kernels, "gather", gather)
    monkeypatch.setattr(copy_kernels, "scatter", lambda records, rows, values: _queued(records, rows, values, False))
    late = (*lazy_device._LATER, torch.ops.tests_of_the_cache.exchange.default)
    monkeypatch.setattr(lazy_device, "_LATER", late)
    lazy_device.install(monkeypatch)
    by_host = [0]

    def write(self: PinnedTier, rows: Tensor, records: Tensor) -> None:
        by_host[0] += rows.numel()
        self.records.index_copy_(0, rows, records)

    collection = started(look_ahead=look_ahead, batch_lookups=batch_lookups, pinned=True, exchange="device")
    monkeypatch.setattr(PinnedTier, "write", write)
    steps = 12
    for step, features in enumerate(collection.announced(batch(step) for step in range(steps))):
        learn(collection(features).values(), step)
    assert collection.counters().rows_written_back > 0
    assert by_host == [0]
    assert_same(snapshot(collection), plain_after(steps))


def test_who_waits_for_rows_that_the_device_writes_waits_for_it() -> None:
    waited: list[str] = []
    writer = Writer(HostTier(rows=1, layout=RowLayout(4, torch.float32, {})), None)
    for number in range(3):
        event = SimpleNamespace(synchronize=lambda number=number: waited.append(number))
        writer.write(torch.tensor([0]), D2HCopy(torch.empty(0, 4), event, home=True), batch=number)
        assert writer.landed == number - 1
        writer.moved(number)
        assert writer.landed == number  # for the device, which keeps the order
    assert (waited, writer.pending_bytes) == ([], 0)
    writer.wait(1)
    assert waited == [2]  # the device writes in order: behind the last it has written all
    writer.wait()
    assert waited == [2]


def test_it_is_refused_where_the_device_does_not_see_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    system = registry.load(registry.Variant.parse(VARIANT))
    _, spec = spec_of(VARIANT, device=torch.device("cpu"))
    assert "for a GPU" in system.support(spec).reason
    _, spec = spec_of("freq_cache[exchange=device]", device=torch.device("cpu"))
    assert "pin them, which is tier=pinned" in system.support(spec).reason
