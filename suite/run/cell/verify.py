"""Verification before timing: a system and the reference train side by side on a shrunken copy of the workload.

The loss of every step is compared, and every row and its optimizer state after `flush()`. Row-wise Adagrad is checked
also for cells that train with SGD: SGD barely changes the loss, so it is a weak test.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from suite.records.record import Check, Verification
from suite.run.cell.feed import Feed, in_process
from suite.run.cell.training import Trainer, load_initial_rows, tables_of
from systems.contract import (
    CacheRatio,
    EmbeddingSystem,
    HostBytes,
    OptimizerKind,
    SparseOptimizer,
    SystemSpec,
    Verdict,
)
from workloads.batch import Workload

STEPS = 8
BATCH_SIZE = 64
CACHE_RATIO = 0.5
"""Cache ratio of the shrunken tables: above a batch's working set, below the run's, so that rows are evicted."""

LR = {
    OptimizerKind.SGD: 1.0,
    OptimizerKind.ROWWISE_ADAGRAD: 0.05,
    OptimizerKind.ADAGRAD: 0.05,
    OptimizerKind.ADAM: 0.01,
}

WIDE = 16
"""Columns of a row above which SGD takes smaller steps: products of wide rows have larger gradients and curvature. At
128 columns a step of 1 diverged for some seeds, and every system was wrong; 0.25 did for none of 60."""

MIN_EPS = {OptimizerKind.ADAGRAD: 1e-5}
"""Minimum eps, so that rounding errors stay small: the first step of element-wise Adagrad is the learning rate times
the sign of a gradient, however small, and the sign of a sum that cancels is random. At this eps, a tenth of a usual
gradient, the step is smooth near 0; a lost update is still as large.
"""

TOLERANCE = {
    OptimizerKind.SGD: 2e-6,
    OptimizerKind.ROWWISE_ADAGRAD: 5e-4,
    OptimizerKind.ADAGRAD: 5e-4,
    OptimizerKind.ADAM: 1e-4,
}
"""Maximum absolute difference of a row where sums are not taken in the reference's order.

Adagrad and Adam divide a gradient by its own magnitude: a row changes by about the learning rate, and a row whose
gradient nearly cancels amplifies the rounding of its terms. A lost, doubled or stale update makes a difference of the
learning rate; a hundredth of that is allowed. On a CPU, over 25 seeds and more of all workloads, fbgemm differed by at
most 2e-5 with row-wise Adagrad and was bitwise equal with SGD; over 72 runs of two workloads by 7e-6 with Adagrad.
"""
DEVICE_LOSS_TOLERANCE = 1e-6
"""Tolerance of a loss near 0.7 that a device sums in another order: seventeen fp32 units in the last place."""
STATE_TOLERANCE = 0.01
"""Relative tolerance of optimizer state: squared gradients are small, an absolute one would allow anything."""
_STATE_FLOOR = 1e-3
"""Share of a table's largest state below which a difference is measured against that share."""


def verify(
    system: type[EmbeddingSystem],
    *,
    spec: SystemSpec,
    workload: Workload,
    seed: int,
    beat: Callable[[], None],
    bitwise: bool = True,
    further: Callable[[SystemSpec, Workload], Iterable[Check]] = lambda spec, workload: (),
) -> Verification:
    """Run every check that the system supports on the cell's device.

    Args:
        system: The class under test.
        spec: The cell's spec; device, variant, width and optimizer are taken from it.
        workload: The cell's workload; a shrunken copy is used.
        seed: Seed of rows, dense weights and probes.
        beat: Called often, to report progress.
        bitwise: Require equality where the arithmetic is the same; it is not if a bag's rows are summed in parts.
        further: Makes further checks for each optimizer, from the shrunken spec and workload.
    """
    # a small real dataset must still hold a batch per step, and one more to evaluate; ranks halve them
    batch_size = 1 << (max(1, min(BATCH_SIZE, workload.epoch_rows() // (STEPS + 1))).bit_length() - 1)
    small = workload.shrunk(max_table_rows=system.verified_rows, batch_size=batch_size)
    kinds = dict.fromkeys((spec.optimizer.kind, OptimizerKind.ROWWISE_ADAGRAD))
    checks: list[Check] = []
    for kind in kinds:
        shrunk = _shrunk_spec(spec, workload=small, kind=kind)
        if system.support(shrunk).verdict is not Verdict.YES:
            continue
        ours = _checks(system, spec=shrunk, workload=small, seed=seed, bitwise=bitwise)
        for check in chain(ours, further(shrunk, small)):
            checks.append(check)
            beat()
    return Verification(checks=tuple(checks))


def _shrunk_spec(spec: SystemSpec, *, workload: Workload, kind: OptimizerKind) -> SystemSpec:
    dim = spec.tables[0].embedding_dim
    tables, lr = tables_of(workload.tables, dim), LR[kind]
    if kind is OptimizerKind.SGD:  # bags of a hundred ids, or products of a thousand columns, would diverge to NaN
        lr *= workload.batch_size * len(tables) / workload.batch_lookups * min(1.0, WIDE / dim)
        lr = 2.0 ** math.floor(math.log2(lr))  # a power of two, exact: fbgemm before 1.8 rounds the product
    budget = spec.budget
    over_ram = isinstance(budget, HostBytes) and budget.device_bytes is not None  # slots above a level of RAM
    return replace(
        spec,
        tables=tables,
        optimizer=SparseOptimizer(kind=kind, lr=lr, eps=max(spec.optimizer.eps, MIN_EPS.get(kind, 0.0))),
        budget=CacheRatio(ratio=CACHE_RATIO, ram_ratio=CACHE_RATIO if over_ram else 0.0),
        batch_lookups=4 * workload.batch_lookups,
        frequencies=workload.frequencies(),
    )


def _checks(
    system: type[EmbeddingSystem], *, spec: SystemSpec, workload: Workload, seed: int, bitwise: bool
) -> Iterator[Check]:
    """One verification: train, evaluate, probe bags, then save, load and continue."""
    kind = spec.optimizer.kind.value
    under_test, reference = (load_initial_rows(made, seed=seed) for made in (system(spec), system.reference(spec)))
    allowed = tolerance(under_test) if bitwise else max(tolerance(under_test), TOLERANCE[spec.optimizer.kind])
    train_test, train_reference = trainer_of(under_test, workload, seed), trainer_of(reference, workload, seed)

    yield losses_check(f"{kind}: losses", train_test, train_reference, loss_tolerance(under_test, allowed))
    yield from rows_checks(f"{kind}: after training", under_test, reference, allowed)

    before = snapshot(under_test)
    logits = train_test.logits(workload.batch(STEPS)) - train_reference.logits(workload.batch(STEPS))
    # a logit adds up what rows of all tables differ by
    of_logits = allowed if under_test.exact else allowed * len(spec.tables)
    yield Check.of(f"{kind}: evaluation output", float(logits.abs().max()), of_logits)
    yield Check.of(f"{kind}: evaluation leaves rows untouched", distance(before, snapshot(under_test)), 0.0)

    bags = _bags(spec, seed)
    outputs = [_trained_on(bags, module, seed) for module in (under_test, reference)]
    loose = max(allowed, TOLERANCE[spec.optimizer.kind])  # each kernel sums the rows of a bag in its own order
    yield Check.of(f"{kind}: empty bags and duplicates, output", float((outputs[0] - outputs[1]).abs().max()), loose)
    yield from rows_checks(f"{kind}: empty bags and duplicates", under_test, reference, loose)

    resumed = load_initial_rows(system(spec), seed=seed + 1)
    try:
        resumed.load_state_dict(under_test.state_dict())
    except RuntimeError as error:  # torch's sentence for keys that are missing or shapes that do not fit
        reason = " ".join(str(error).split())
        failure = f"its own state_dict cannot be loaded: {reason}"
        yield Check.of(f"{kind}: save, load and go on", math.inf, 0.0, detail=failure)
        return
    for module in (under_test, resumed):
        _trained_on(bags, module, seed + 1)
    resumed_exactly = 0.0 if spec.device.type == "cpu" else loose
    yield from rows_checks(f"{kind}: save, load and go on", resumed, under_test, resumed_exactly)


def losses_check(name: str, ours: Trainer, theirs: Trainer, allowed: float) -> Check:
    """Train both for `STEPS` steps and compare the losses of each."""
    apart = torch.tensor([ours.run(1).loss - theirs.run(1).loss for _ in range(STEPS)])
    return Check.of(name, float(apart.abs().max()), allowed)


def trainer_of(
    system: EmbeddingSystem, workload: Workload, seed: int, *, feed: Feed | None = None, kind: type[Trainer] = Trainer
) -> Trainer:
    """A trainer of a small DLRM around a system, for `STEPS` steps; by default this process makes the batches."""
    return kind(
        system,
        workload,
        bottom_mlp=(16,),
        top_mlp=(16, 1),
        seed=seed,
        feed=feed or in_process(workload, system.spec.device),
        total_steps=STEPS,
    )


def _bags(spec: SystemSpec, seed: int) -> KeyedJaggedTensor:
    """Bags of 0 to 3 ids with many duplicates, for the spec's features."""
    generator = torch.Generator().manual_seed(seed)
    features = [(name, table.num_embeddings) for table in spec.tables for name in table.feature_names]
    lengths = torch.randint(0, 4, (len(features), BATCH_SIZE), generator=generator)
    lengths[:, 0] = 0  # at least one empty bag per feature
    lengths[:, 1] = 3
    values = [
        torch.randint(0, min(rows, 40), (int(n),), generator=generator)
        for (_, rows), n in zip(features, lengths.sum(dim=1), strict=True)
    ]
    return KeyedJaggedTensor([name for name, _ in features], torch.cat(values), lengths=lengths.flatten())


def _trained_on(bags: KeyedJaggedTensor, system: EmbeddingSystem, seed: int) -> Tensor:
    """Pool bags and backpropagate a seeded gradient; without `requires_grad` rows stay as they are, and checks fail."""
    features = bags if system.ids_on_host else bags.to(system.spec.device)
    pooled: Tensor = system.train()(features).values()
    if pooled.requires_grad:
        gradient = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed)) / pooled.shape[0]
        pooled.backward(gradient.to(pooled.device))
    return pooled.detach()


def tolerance(system: EmbeddingSystem) -> float:
    """Maximum absolute difference of a row; 0 for exact systems with SGD on a CPU that compute as the reference does.

    Tables pool by sum. Where a slow tier rounds rows, its reference rounds too. After sums in another order a value may
    round to the other neighbour: that is twice the round-trip error of the largest initial row.
    """
    spec = system.spec
    on_cpu_with_sgd = spec.device.type == "cpu" and spec.optimizer.kind is OptimizerKind.SGD
    if system.exact and system.sums_gradients and on_cpu_with_sgd:
        return 0.0
    allowed = TOLERANCE[spec.optimizer.kind] * (1 if system.sums_gradients else 5)
    if system.row_error and not on_cpu_with_sgd:
        rows = [system.read_rows(name, torch.arange(t.num_embeddings)).weights for name, t in system.tables.items()]
        allowed += 2 * system.row_error * max(float(weights.abs().max()) for weights in rows)
    return allowed


def loss_tolerance(system: EmbeddingSystem, allowed: float) -> float:
    """Maximum difference of a loss, where `allowed` is that of a row.

    A tenth of it, and on a device at least the rounding error; for an approximate system all of it, because a parameter
    that many rows share changes all of them.
    """
    if not system.exact:
        return allowed
    return allowed / 10 if system.spec.device.type == "cpu" else max(allowed / 10, DEVICE_LOSS_TOLERANCE)


def snapshot(system: EmbeddingSystem) -> dict[str, Tensor]:
    """All rows and all optimizer state after a flush, by `table.weight` and `table.state`."""
    system.flush()
    found = {}
    for name, table in system.tables.items():
        rows = system.read_rows(name, torch.arange(table.num_embeddings))
        found[f"{name}.weight"] = rows.weights.clone()
        found.update({f"{name}.{state}": value.clone() for state, value in rows.state.items()})
    return found


def distance(left: dict[str, Tensor], right: dict[str, Tensor], *, relative: bool = False) -> float:
    """Largest difference, NaN if an element is NaN; infinite if one side lacks an entry."""
    if left.keys() != right.keys():
        return float("inf")
    largest = []
    for name, value in right.items():
        apart = (left[name] - value).abs()
        if relative:
            size = value.abs()
            apart /= (size + _STATE_FLOOR * size.max()).clamp(min=torch.finfo(size.dtype).tiny)
        largest.append(apart.max())
    return float(torch.stack(largest).max())


def rows_checks(name: str, left: EmbeddingSystem, right: EmbeddingSystem, allowed: float) -> Iterator[Check]:
    """Compare all rows of the system under test with another's, and all optimizer state where there is any.

    Args:
        name: Prefix of the checks' names.
        left: The system under test.
        right: The system that it is compared with.
        allowed: Maximum absolute difference of a row; 0 requires that state is equal too.
    """
    ours, theirs = snapshot(left), snapshot(right)
    rows, their_rows = (
        {name: side.pop(name) for name in list(side) if name.endswith(".weight")} for side in (ours, theirs)
    )
    yield Check.of(f"{name}, rows", distance(rows, their_rows), allowed)
    if ours or theirs:  # the remaining entries are state
        apart = distance(ours, theirs, relative=True)
        yield Check.of(f"{name}, optimizer state", apart, STATE_TOLERANCE if allowed else 0.0)
