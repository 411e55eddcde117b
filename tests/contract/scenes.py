"""What the contract tests share: the systems under test, tables with every oddity, ragged batches, comparisons."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.types import DataType

from suite.records.record import Verification
from suite.run.cell.training import tables_of
from suite.run.cell.verify import verify
from systems import registry
from systems.contract import (
    Budget,
    CacheRatio,
    DeviceBytes,
    EmbeddingSystem,
    OptimizerKind,
    SparseOptimizer,
    SystemSpec,
    Verdict,
)
from tests.contract.plain_training import PlainTraining
from workloads.streams.synthetic import SyntheticWorkload

EVERY_VARIANT = [*registry.ALL, "fbgemm_uvm_caching[policy=lfu]", *registry.DISK]
_ALIKE = ("fbgemm_uvm", "fbgemm_uvm_caching", "fbgemm_uvm_caching[policy=lfu]", "torchrec_uvm_caching", "full_ram")
VARIANTS = [variant for variant in EVERY_VARIANT if variant not in _ALIKE]
"""On a CPU without those whose kernels on whose memory are another's there, as `test_what_a_row_says` finds them."""
if torch.cuda.is_available():
    # a CPU has nothing to pin
    EVERY_VARIANT += ["freq_cache[tier=pinned]", "freq_cache[copy_engine=device,tier=pinned]"]
    VARIANTS = EVERY_VARIANT
CACHES = [variant for variant in EVERY_VARIANT if variant.startswith("freq_cache")]
UVM = [variant for variant in EVERY_VARIANT if "uvm" in variant]
MUST_HOLD_A_BATCH = ["colossalai_cache"]
"""Caches that refuse a batch with more distinct rows than slots. Batches here have most rows in them, so under a ratio
these get a slot for every row; tests of their own let rows leave.
"""

KINDS = list(OptimizerKind)
LR = dict(zip(KINDS, (0.5, 0.1, 0.1, 0.05), strict=True))
TOLERANCE = dict(zip(KINDS, (2e-5, 2e-5, 2e-5, 1e-4), strict=True))
"""fp32 against float64, after some ten steps on values of order 1 to 10."""


def table(name: str, rows: int, dim: int, *features: str, mean: bool = False, half: bool = False) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features or (name,)),
        pooling=PoolingType.MEAN if mean else PoolingType.SUM,
        data_type=DataType.FP16 if half else DataType.FP32,
    )


TABLES = (
    table("users", 41, 16, "clicked", "bought"),
    table("colours", 7, 16),
    table("words", 29, 16),
    table("one_row", 1, 16),
    table("shops", 23, 16),
)
"""A table behind two features, a table of one row."""

UNIFORM = (table("left", 37, 8), table("right", 19, 8, "right_1", "right_2"))


def optimizer(kind: OptimizerKind) -> SparseOptimizer:
    return SparseOptimizer(kind=kind, lr=LR[kind], eps=1e-8)


def frequencies(tables: tuple[EmbeddingBagConfig, ...]) -> dict[str, Tensor]:
    """Row 0 of each table is the most frequent, with ties on the way down."""
    return {t.name: 1000 // (1 + torch.arange(t.num_embeddings) // 2) for t in tables}


def spec(
    *tables: EmbeddingBagConfig,
    device: str = "cuda",
    kind: OptimizerKind = OptimizerKind.SGD,
    lr: float = 0.1,
    ratio: float = 0.5,
    total_bytes: int | None = None,
    batch_lookups: int = 0,
    frequencies: Mapping[str, Sequence[int]] | None = None,
    **parameters: str,
) -> SystemSpec:
    """A setting by hand, by default of a GPU, which need not be there."""
    budget: Budget = CacheRatio(ratio=ratio) if total_bytes is None else DeviceBytes(total_bytes=total_bytes)
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=kind, lr=lr),
        device=torch.device(device),
        budget=budget,
        batch_lookups=batch_lookups,
        frequencies=None if frequencies is None else {name: torch.tensor(of) for name, of in frequencies.items()},
        parameters=parameters,
    )


def spec_of(
    variant: str,
    *,
    device: torch.device,
    tables: tuple[EmbeddingBagConfig, ...] = TABLES,
    kind: OptimizerKind = OptimizerKind.SGD,
    budget: Budget = CacheRatio(ratio=0.4),  # noqa: B008 - frozen
    batch_lookups: int = 512,
    weighted: bool = False,
) -> tuple[type[EmbeddingSystem], SystemSpec]:
    chosen = registry.Variant.parse(variant)
    system = registry.load(chosen)
    every_row = variant in MUST_HOLD_A_BATCH and isinstance(budget, CacheRatio)
    spec = SystemSpec(
        tables=tables,
        optimizer=optimizer(kind),
        device=device,
        budget=CacheRatio(ratio=1.0) if every_row else budget,
        batch_lookups=batch_lookups,
        frequencies=frequencies(tables),
        weighted=weighted,
        parameters=registry.resolved_parameters(chosen, system),
    )
    return system, spec


def runnable(variant: str, *, device: torch.device, **choices: object) -> tuple[type[EmbeddingSystem], SystemSpec]:
    """A system and its spec; the test is skipped with the system's own reason where it says that it cannot run."""
    system, spec = spec_of(variant, device=device, **choices)
    answer = system.support(spec)
    if answer.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"{variant}: {answer.reason}")
    assert answer.verdict is Verdict.YES, answer.reason
    return system, spec


def build(variant: str, *, device: torch.device, **choices: object) -> EmbeddingSystem:
    """A fresh system, where it is `runnable`."""
    system, spec = runnable(variant, device=device, **choices)
    return system(spec)


def ragged(
    seed: int,
    tables: tuple[EmbeddingBagConfig, ...] = TABLES,
    *,
    batch: int = 8,
    longest: int = 4,
    shuffle_keys: bool = True,
    weighted: bool = False,
) -> KeyedJaggedTensor:
    """Bags of 0 to `longest` ids with duplicates, at least one bag empty; ids reach both ends of every table.

    Weights, where asked for, are negative, zero and positive.
    """
    draw = torch.Generator().manual_seed(seed)
    features = [(name, t.num_embeddings) for t in tables for name in t.feature_names]
    if shuffle_keys:
        features = [features[i] for i in torch.randperm(len(features), generator=draw)]
    lengths = torch.randint(0, longest + 1, (len(features), batch), generator=draw)
    lengths[:, 0], lengths[:, 1] = 0, longest
    values = []
    for (_, rows), n in zip(features, lengths.sum(dim=1).tolist(), strict=True):
        ids = torch.randint(0, rows, (n,), generator=draw)
        ids[torch.rand(n, generator=draw) < 0.3] = rows - 1
        ids[torch.rand(n, generator=draw) < 0.2] = 0
        values.append(ids)
    ids = torch.cat(values)
    weights = torch.randn(ids.numel(), generator=draw).mul_(2).round_().div_(2) if weighted else None
    return KeyedJaggedTensor([name for name, _ in features], ids, weights, lengths=lengths.flatten())


def batch_of(ids: Mapping[str, list[list[int]]]) -> KeyedJaggedTensor:
    """A batch written out: the bags of every feature."""
    lengths = torch.tensor([len(bag) for bags in ids.values() for bag in bags])
    values = torch.tensor([i for bags in ids.values() for bag in bags for i in bag], dtype=torch.int64)
    return KeyedJaggedTensor(list(ids), values, lengths=lengths)


def on_its_side(system: EmbeddingSystem, batch: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return batch if system.ids_on_host else batch.to(system.spec.device)


def gradient_like(pooled: Tensor, seed: int) -> Tensor:
    return torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1000 + seed))


def train(system: EmbeddingSystem, batch: KeyedJaggedTensor, seed: int = 0) -> Tensor:
    """One step whose loss is `(pooled * gradient).sum()`; the gradient follows from the seed."""
    features = on_its_side(system, batch)
    if system.look_ahead:
        system.prefetch(features)
    pooled = system(features).values()
    (pooled * gradient_like(pooled, seed).to(pooled.device)).sum().backward()
    return pooled.detach().cpu()


def evaluate(system: EmbeddingSystem, batch: KeyedJaggedTensor) -> Tensor:
    with torch.no_grad():
        return system(on_its_side(system, batch)).values().cpu()


def snapshot(system: EmbeddingSystem) -> dict[str, Tensor]:
    """All rows and all optimizer state, by `table.weight` and `table.state`."""
    found = {}
    for name, t in system.tables.items():
        rows = system.read_rows(name, torch.arange(t.num_embeddings))
        found[f"{name}.weight"] = rows.weights
        found.update({f"{name}.{state}": value for state, value in rows.state.items()})
    return found


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], *, within: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=within, msg=lambda m, name=name: f"{name}: {m}")


def repeatable(device: torch.device) -> float:
    """How far two runs of one system may differ: CUDA kernels sum duplicates in no fixed order."""
    return 0.0 if device.type == "cpu" else 1e-4


def started(
    variant: str,
    device: torch.device,
    kind: OptimizerKind = OptimizerKind.ROWWISE_ADAGRAD,
    *,
    seed: int = 1,
    **choices: object,
) -> EmbeddingSystem:
    """A system with the first rows of `PlainTraining`."""
    system = build(variant, device=device, kind=kind, **choices)
    PlainTraining(system.spec.tables, optimizer(kind), seed=seed).start(system)
    return system


def trained(*chosen: object, **choices: object) -> EmbeddingSystem:
    """`started`, and trained for four steps."""
    system = started(*chosen, **choices)
    for seed in range(4):
        train(system, ragged(seed, system.spec.tables), seed)
    return system


def train_beside(
    system: EmbeddingSystem, plain: PlainTraining, batches: Iterable[KeyedJaggedTensor], *, within: float
) -> None:
    """Train a system and plain tables on the same batches: what both pool must agree."""
    for seed, batch in enumerate(batches):
        expected = plain.step(batch, gradient_like(plain.pooled(batch), seed)).float()
        torch.testing.assert_close(train(system, batch, seed), expected, rtol=within, atol=within)


def assert_rows_match(system: EmbeddingSystem, plain: PlainTraining, *, within: float) -> None:
    """Rows and state of a system are those of plain tables."""
    for name, weights in plain.weights.items():
        rows = system.read_rows(name, torch.arange(weights.shape[0]))
        torch.testing.assert_close(rows.weights, weights.float(), rtol=within, atol=within)
        assert rows.state.keys() == plain.states[name].keys()
        for state, value in plain.states[name].items():
            torch.testing.assert_close(rows.state[state], value.float(), rtol=within, atol=within)


def verification_of(
    system: type[EmbeddingSystem],
    variant: str,
    *,
    budget: Budget,
    dim: int = 16,
    kind: OptimizerKind = OptimizerKind.SGD,
    max_rows: int = 3000,
) -> Verification:
    """What verification says of a system that stands for a variant, on a small stream of Avazu."""
    workload = SyntheticWorkload.create("avazu", batch_size=64, seed=0, max_rows=max_rows)
    spec = SystemSpec(
        tables=tables_of(workload.tables, dim),
        optimizer=SparseOptimizer(kind=kind, lr=1.0),
        device=torch.device("cpu"),
        budget=budget,
        batch_lookups=workload.batch_lookups,
        frequencies=workload.frequencies(),
        parameters=registry.resolved_parameters(registry.Variant.parse(variant), system),
    )
    return verify(system, spec=spec, workload=workload, seed=0, beat=lambda: None)
