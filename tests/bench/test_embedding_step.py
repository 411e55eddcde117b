"""The embedding step (lookup, backward with its fused update, cache work) of every system on one synthetic stream.

Ours in turns with the full table of fbgemm, batch by batch on the same ids, so that their answers can be compared too.
Every round takes the next batch of the stream, made outside the clock: a replayed batch would make any cache look
perfect. With benchmarks disabled one step runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor
from turns import Side, Turns

from suite.run.cell.training import tables_of
from systems import registry
from systems.contract import (
    CacheRatio,
    EmbeddingSystem,
    OptimizerKind,
    Rows,
    SparseOptimizer,
    SystemSpec,
    Verdict,
)
from workloads.streams.synthetic import SyntheticWorkload

OURS = ["freq_cache", "freq_cache[policy=lfu]", "freq_cache[look_ahead=4]"]
PEERS = [*(name for name in registry.SYSTEMS if name not in OURS), "fbgemm_uvm_caching[policy=lfu]"]
FULL_TABLE = "full_gpu"
DIM = 32
CACHE = CacheRatio(ratio=0.1)
OPTIMIZERS = [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD]
WARMUP_ROUNDS = 10
ROUNDS = 60
MAX_ROWS = 200_000
BATCH_SIZE = 512


@pytest.fixture(scope="module")
def workload() -> SyntheticWorkload:
    return SyntheticWorkload.create("criteo_kaggle", batch_size=BATCH_SIZE, seed=0, max_rows=MAX_ROWS)


@pytest.fixture(scope="module")
def frequencies(workload: SyntheticWorkload) -> dict[str, Tensor]:
    return dict(workload.frequencies())


class Steps:
    """A system with its stream: `prepare` makes what a step needs, `run` is what the clock sees."""

    def __init__(self, system: EmbeddingSystem, workload: SyntheticWorkload) -> None:
        self._system = system
        self._device = system.spec.device
        self._batches = self._stream(workload)
        self._gradient = torch.full((BATCH_SIZE, DIM * len(system.spec.tables)), 1 / BATCH_SIZE, device=self._device)
        self._coming = [next(self._batches) for _ in range(system.look_ahead)]
        for features in self._coming:
            system.prefetch(features)
        self.last: KeyedJaggedTensor | None = None

    def _stream(self, workload: SyntheticWorkload) -> Iterator[KeyedJaggedTensor]:
        for index in range(workload.epoch_rows() // BATCH_SIZE):
            features = workload.batch(index).features
            yield features if self._system.ids_on_host else features.to(self._device)

    def prepare(self) -> tuple[tuple[KeyedJaggedTensor, KeyedJaggedTensor], dict[str, object]]:
        """The batch to train on and the newest one to announce: the same where the system does not look ahead."""
        self._coming.append(next(self._batches))
        self.last = self._coming.pop(0)
        newest = self._coming[-1] if self._coming else self.last
        self._synchronize()  # nothing of the round before may run on this one's time
        return (self.last, newest), {}

    def run(self, features: KeyedJaggedTensor, newest: KeyedJaggedTensor) -> Tensor:
        if self._system.look_ahead:
            self._system.prefetch(newest)
        pooled: Tensor = self._system(features).values()
        pooled.backward(self._gradient)
        self._synchronize()
        return pooled

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def build(
    variant: str,
    optimizer: OptimizerKind,
    workload: SyntheticWorkload,
    frequencies: dict[str, Tensor],
    device: torch.device,
) -> EmbeddingSystem:
    chosen = registry.Variant.parse(variant)
    system_class = registry.load(chosen)
    tables = tables_of(workload.tables, DIM)
    spec = SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=optimizer, lr=0.05),
        device=device,
        budget=CACHE,
        batch_lookups=BATCH_SIZE * len(tables),
        frequencies=frequencies,
        parameters=registry.resolved_parameters(chosen, system_class),
    )
    answer = system_class.support(spec)
    if answer.verdict is not Verdict.YES:
        pytest.skip(f"{variant}: {answer.reason}")
    system = system_class(spec)
    for table in tables:
        system.load_rows(table.name, 0, Rows(torch.zeros(table.num_embeddings, DIM)))
    return system


def side_of(variant: str, system: EmbeddingSystem, steps: Steps) -> Side:
    spec = system.spec
    return Side(
        name=f"test_embedding_step[{variant}-{spec.optimizer.kind.value}]",
        unit="ids",
        units=spec.batch_lookups,
        prepare=lambda: steps.prepare()[0],
        run=steps.run,
        device=spec.device.type,
    )


@pytest.mark.benchmark(group="embedding step")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("variant", [*OURS, *PEERS])
def test_embedding_step(
    turns: Turns,
    variant: str,
    optimizer: OptimizerKind,
    workload: SyntheticWorkload,
    frequencies: dict[str, Tensor],
    device: torch.device,
) -> None:
    system = build(variant, optimizer, workload, frequencies, device)
    steps = Steps(system, workload)
    side = side_of(variant, system, steps)
    if variant in OURS:
        full = build(FULL_TABLE, optimizer, workload, frequencies, device)
        beside = side_of(FULL_TABLE, full, Steps(full, workload))
        pooled, expected = turns.measure(side, beside=beside, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
        torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    else:
        pooled = turns.measure(side, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    assert pooled.shape == (BATCH_SIZE, DIM * 26)
    assert steps.last is not None
    for table in system.spec.tables:
        trained = system.read_rows(table.name, steps.last[table.name].values().cpu().unique())
        assert (trained.weights < 0).all()  # rows began at 0 and every gradient is positive
        if optimizer is OptimizerKind.ROWWISE_ADAGRAD:
            assert (trained.state["sum"] > 0).all()
