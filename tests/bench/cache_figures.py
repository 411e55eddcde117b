"""What the frequency-aware cache costs and saves, on this machine. One command per figure:

    python tests/bench/cache_figures.py planning --out results/cache/planning.json
    python tests/bench/cache_figures.py stage --out results/cache/stage.json
    python tests/bench/cache_figures.py table-size --dim 16 --out results/cache/table_size.json
    python tests/bench/cache_figures.py miss-cost --out results/cache/miss_cost.json
    python tests/bench/cache_figures.py misses --out results/cache/misses.json

- `planning`: a batch of 16,384 x 26 ids over the 177,944,275 rows of Criteo 1TB, 1 % of them cached. Beside it what a
  read at a random place of an index of that size takes just before, for most of planning is such reads. Three planners
  of each kind, the one in the middle counts.
- `stage`: plan, move, look up, backward, update of 53,248 ids over 1 M x 32 fp32, 5 % cached, against full tables of
  fbgemm's on the same batches.
- `table-size`: the same step with equal slots and misses over tables of 1 M to 178 M rows, alone and inside the DLRM of
  `--scale small`. All tables are in memory at once: with `--dim 16` they take 16 GB, with the default 32 twice that.
- `miss-cost`: the same step over one table, by how many of its rows are missing.
- `misses`: unique misses per batch of the full-size Criteo Kaggle stream, against the batch-granular minimum of Belady.

Ids follow Zipf's law with exponent 1.05 in every table, ranks scrambled over the rows, and no batch comes twice; making
them, bag offsets included, is outside the clock. What is compared runs in one process, in blocks of steps that take
turns, forth and back; ratios are medians over the blocks of one turn each. The record says what the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from zipf_tables import ZipfTables, criteo_1tb_sizes

from suite.records.scales import SMALL
from suite.run.memory_probes import available_host_bytes
from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer, SystemSpec
from systems.freq_cache import LFU, LRU, CachedEmbeddingBagCollection, Policy, StaticFrequency
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from systems.freq_cache.sizing import ROW_INDEX_BYTES
from workloads.dlrm import build_dlrm
from workloads.streams.synthetic import SyntheticWorkload

POLICIES = ("static", "lfu", "lru")
_BUILDS = 3
"""Planners of each kind: where its memory lies makes one faster than its equal by up to 1.7 times."""
_LOAD_ROWS = 1 << 20
_ROTATING_ROWS = 1_000_000
"""Rows that miss in turn, at random places of the table, as many in any table."""


def planning(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to announce and plan a batch, by policy."""
    sizes = criteo_1tb_sizes(setting.rows or 177_944_275)
    samples = (setting.lookups or 425_984) // len(sizes)
    stream = ZipfTables(sizes)
    batches = [ids_of(stream.ids(samples), sizes) for _ in range(setting.steps)]
    frequencies = [counts.numpy() for counts in stream.frequencies()]
    anywhere, index = np.random.default_rng(0).integers(sum(sizes), size=1 << 18), np.ones(sum(sizes), np.int32)
    built: dict[str, list[dict[str, float]]] = {}
    for _ in range(_BUILDS):
        for look_ahead in (0, 16):
            for policy in POLICIES:
                planner = planner_of(policy, frequencies, ratio=setting.ratio or 0.01)
                reads, times, misses = [], [], []
                for _ in range(20):
                    start = time.perf_counter()
                    index.take(anywhere)
                    reads.append(1e9 * (time.perf_counter() - start) / anywhere.size)
                for batch in batches:
                    start = time.perf_counter()
                    planner.announce(batch, changes=True)
                    if planner.announced > look_ahead:
                        plan = planner.plan()
                        times.append(1e3 * (time.perf_counter() - start))
                        misses.append(plan.unique_misses)
                steady = slice(len(times) // 2, None)
                found = {
                    "ms_per_batch": statistics.median(times[steady]),
                    "ms_p90": float(np.quantile(times[steady], 0.9)),
                    "ns_per_random_read": statistics.median(reads),
                    "unique_misses_per_batch": statistics.mean(misses[steady]),
                    "slots": planner.slots,
                    "host_index_bytes_per_row": planner.index_bytes / planner.rows,
                    "device_index_bytes_per_row": 0,
                }
                built.setdefault(f"{policy}, look-ahead {look_ahead}", []).append(found)
    results = {}
    for name, builds in built.items():
        middle = {key: statistics.median(found[key] for found in builds) for key in builds[0]}
        middle["million_ids_per_s"] = batches[0].values.size / middle["ms_per_batch"] / 1e3
        results[name] = {**middle, "ms_by_build": [found["ms_per_batch"] for found in builds]}
    return {"ids_per_batch": batches[0].values.size, "rows": sum(sizes), "results": results}


def stage(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an embedding step, and throughput relative to full tables, by tables and optimizer."""
    lookups = setting.lookups or 53_248
    results = {}
    for tables in (26, 1):
        rows = setting.rows or 1_000_000
        sizes = [rows // tables] * tables
        for kind in (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD):
            names = ["full_gpu", *(f"freq_cache[look_ahead={n}]" for n in (0, 1, 4))]
            found = compare(names, ZipfTables(sizes), lookups // tables, kind, setting)
            results[f"{tables} tables, {kind.value}"] = found
    return {"lookups": lookups, "rows": rows, "dim": setting.dim, "results": results}


def table_size(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step by rows of the table, at equal slots and misses."""
    slots, hits, misses, lookups = 50_000, 10_000, 10_000, setting.lookups or 53_248
    largest = setting.rows or 177_944_275
    sizes = [*(size for size in (1_000_000, 10_000_000, 50_000_000) if size < largest), largest]
    needed = sum(sizes) * (4 * setting.dim + ROW_INDEX_BYTES)
    if needed > (free := available_host_bytes()):
        raise SystemExit(
            f"tables of {', '.join(f'{size:,}' for size in sizes)} rows take {needed / 1e9:.1f} GB with --dim "
            f"{setting.dim}, and {free / 1e9:.1f} GB are free: give a smaller --dim or --rows"
        )
    caches = {size: cached(size, slots, setting.dim, lookups, features=26) for size in sizes}
    streams = {size: sliding(size, hits, misses, lookups, features=26) for size in sizes}
    results = {}
    for what, step_of in (("embedding step", embedding_step), ("DLRM step", dlrm_step)):
        runs = {f"{size:,} rows": (cache, step_of(cache), streams[size]) for size, cache in caches.items()}
        results[what] = in_turns(runs, setting)
    return {"slots": slots, "dim": setting.dim, "lookups": lookups, "results": results}


def miss_cost(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step by its misses, 20,000 distinct rows of 1 M each time, and the line through them."""
    lookups, distinct = setting.lookups or 53_248, 20_000
    counts = (0, 2_500, 5_000, 10_000, 15_000, 20_000)
    runs = {}
    for misses in counts:
        cache = cached(1_000_000, 50_000, setting.dim, lookups)
        stream = sliding(1_000_000, distinct - misses, misses, lookups)
        runs[f"{misses:,} misses"] = (cache, embedding_step(cache), stream)
    results = in_turns(runs, setting)
    least = next(iter(results.values()))["ms_per_step"]
    times = least * np.array([found["relative_cost"] for found in results.values()])  # steps of one turn each
    slope, intercept = np.polyfit(counts, times, 1)
    spread = 1 - np.sum((times - slope * np.array(counts) - intercept) ** 2) / np.sum((times - times.mean()) ** 2)
    line = {"ns_per_miss": 1e6 * float(slope), "ms_without": float(intercept), "r_squared": float(spread)}
    return {"lookups": lookups, "distinct_rows": distinct, "dim": setting.dim, "line": line, "results": results}


def misses(setting: argparse.Namespace) -> dict[str, Any]:
    """Unique misses per batch of the Criteo Kaggle stream by policy and look-ahead, against Belady's minimum."""
    samples = (setting.lookups or 425_984) // 26
    workload = SyntheticWorkload.create("criteo_kaggle", batch_size=samples, seed=0, max_rows=setting.rows)
    sizes = [rows for _, rows in workload.tables]
    batches = [ids_of(_features(workload, index), sizes) for index in range(setting.steps)]
    frequencies = [workload.frequencies()[name].numpy() for name, _ in workload.tables]
    ratio = setting.ratio or 0.01
    steady = slice(setting.steps // 3, -64)  # the last batches have less to look ahead to

    def run(policy: str, look_ahead: int) -> tuple[float, float]:
        plans = planned(planner_of(policy, frequencies, ratio=ratio), batches, look_ahead)
        counted, times = [], []
        for _ in batches:
            start = time.perf_counter()
            counted.append(next(plans).unique_misses)
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.mean(counted[steady]), statistics.median(times[steady])

    best, _ = run("static", len(batches))
    results = {}
    for policy in POLICIES:
        for look_ahead in (0, 1, 4, 16, 64):
            count, ms = run(policy, look_ahead)
            results[f"{policy}, look-ahead {look_ahead}"] = {
                "unique_misses": count,
                "relative_to_belady": count / best,
                "ms_per_batch": ms,
            }
    return {
        "workload": "criteo_kaggle, synthetic",
        "rows": sum(sizes),
        "cache_ratio": ratio,
        "batches_counted": len(range(*steady.indices(setting.steps))),
        "belady_unique_misses": best,
        "results": results,
    }


def ids_of(ids: np.ndarray, sizes: Sequence[int]) -> Ids:
    """Ids `[tables, samples]` as a planner takes them."""
    starts = np.cumsum(sizes) - sizes
    return Ids(ids.reshape(-1), np.arange(1, len(sizes) + 1) * ids.shape[1], starts)


def planner_of(policy: str, frequencies: Sequence[np.ndarray], *, ratio: float) -> Planner:
    """A planner that has been warmed up."""
    rows = sum(counts.size for counts in frequencies)
    made: Policy = StaticFrequency(frequencies) if policy == "static" else LFU(rows) if policy == "lfu" else LRU()
    planner = Planner(rows=rows, slots=int(rows * ratio), policy=made)
    planner.warm_up()
    return planner


def planned(planner: Planner, batches: Sequence[Ids], look_ahead: int) -> Iterator[Plan]:
    """The plans of batches that are announced so many ahead."""
    for at, batch in enumerate(batches):
        planner.announce(batch, changes=True)
        if at >= look_ahead:
            yield planner.plan()
    while planner.announced:
        yield planner.plan()


def compare(
    variants: Sequence[str], stream: ZipfTables, samples: int, kind: OptimizerKind, setting: argparse.Namespace
) -> dict[str, Any]:
    """Times of systems on the same batches, in turns. The answers of the last step of every block must agree."""
    tables = [f"t{at}" for at in range(len(stream.sizes))]
    frequencies = dict(zip(tables, stream.frequencies(), strict=True))
    systems = {name: system_of(name, stream.sizes, samples, kind, frequencies, setting) for name in variants}
    batches = [features_of(tables, stream.ids(samples)) for _ in range(setting.steps)]
    gradient = torch.randn(samples, len(tables) * setting.dim, generator=torch.Generator().manual_seed(0)) / samples
    at = dict.fromkeys(systems, 0)
    for system in systems.values():
        for batch in batches[: system.look_ahead]:
            system.prefetch(batch)
    times: dict[str, list[float]] = {name: [] for name in systems}
    last: dict[str, Tensor] = {}
    for turn in range(setting.steps // setting.block):
        for name in list(systems)[:: 1 if turn % 2 else -1]:
            system, begin = systems[name], at[name]
            time.sleep(0.02)  # what the turn before left to threads is over
            for index in range(begin, begin + setting.block):
                if index == begin + setting.block // 4:  # by now the processor's caches are this system's
                    start = time.perf_counter()
                coming = index + system.look_ahead
                if coming > index and coming < len(batches):
                    system.prefetch(batches[coming])
                pooled = system(batches[index]).values()
                pooled.backward(gradient)
            times[name].append(1e3 * (time.perf_counter() - start) / (setting.block - setting.block // 4))
            at[name], last[name] = begin + setting.block, pooled.detach()
        for name, answer in last.items():
            if kind is OptimizerKind.SGD and not torch.equal(answer, last[variants[0]]):
                raise SystemExit(f"{name} answers otherwise than {variants[0]}")
            torch.testing.assert_close(answer, last[variants[0]], rtol=1e-4, atol=1e-5)
    steady = slice(len(times[variants[0]]) // 4, None)
    results = {}
    for name, found in times.items():
        ratios = [base / own for base, own in zip(times[variants[0]][steady], found[steady], strict=True)]
        counters = systems[name].counters()
        results[name] = {
            "ms_per_step": statistics.median(found[steady]),
            "throughput_relative_to_full": statistics.median(ratios),
            "quartiles": [float(np.quantile(ratios, share)) for share in (0.25, 0.75)],
            "unique_hit_rate": 1 - (counters.unique_misses or 0) / (counters.unique_ids or 1),
        }
    return results


def system_of(
    name: str,
    sizes: Sequence[int],
    samples: int,
    kind: OptimizerKind,
    frequencies: Mapping[str, Tensor],
    setting: argparse.Namespace,
) -> EmbeddingSystem:
    """A system over equal tables, loaded with equal rows."""
    chosen = registry.Variant.parse(name)
    made = registry.load(chosen)
    tables = [config(f"t{at}", rows, setting.dim) for at, rows in enumerate(sizes)]
    spec = SystemSpec(
        tables=tuple(tables),
        optimizer=SparseOptimizer(kind=kind, lr=0.05),
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=setting.ratio or 0.05),
        batch_lookups=samples * len(sizes),
        frequencies=frequencies,
        parameters=registry.resolved_parameters(chosen, made),
    )
    system = made(spec)
    generator = torch.Generator().manual_seed(0)
    for table in tables:
        for start in range(0, table.num_embeddings, _LOAD_ROWS):
            rows = min(_LOAD_ROWS, table.num_embeddings - start)
            system.load_rows(table.name, start, Rows(torch.randn(rows, setting.dim, generator=generator)))
    return system


def config(name: str, rows: int, dim: int) -> EmbeddingBagConfig:
    """A table with a feature of the same name."""
    return EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=dim)


def features_of(names: list[str], ids: np.ndarray) -> KeyedJaggedTensor:
    """Ids `[features, samples]`, one per bag.

    With their offsets: were these made at the first lookup, then whoever came first would pay for them, and what stays
    behind of them would break up the memory that answers are written to, which costs more than a lookup.
    """
    values, ends = torch.from_numpy(ids.reshape(-1)), torch.arange(ids.size + 1)
    return KeyedJaggedTensor(names, values, lengths=torch.ones_like(values), offsets=ends, stride=ids.shape[1])


def cached(rows: int, slots: int, dim: int, lookups: int, *, features: int = 1) -> CachedEmbeddingBagCollection:
    """A cache of so many slots over one table."""
    names = [f"f{at}" for at in range(features)]
    return CachedEmbeddingBagCollection(
        [EmbeddingBagConfig(name="t", feature_names=names, num_embeddings=rows, embedding_dim=dim)],
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.05),
        cache_ratio=0.5,
        cache_rows={"t": slots},
        policy="lru",
        batch_lookups=lookups,
        seed=None,
    )


def embedding_step(cache: CachedEmbeddingBagCollection) -> Callable[[KeyedJaggedTensor], None]:
    """Plan, move, look up, backward, update."""

    def step(batch: KeyedJaggedTensor) -> None:
        values = cache(batch).values()
        values.backward(torch.full_like(values, 1e-3))

    return step


def dlrm_step(cache: CachedEmbeddingBagCollection) -> Callable[[KeyedJaggedTensor], None]:
    """A training step of the DLRM of `--scale small` around a cache."""
    (table,) = cache.embedding_bag_configs()
    model = build_dlrm(
        cache,
        dense_columns=13,
        embedding_dim=table.embedding_dim,
        bottom_mlp=SMALL.bottom_mlp,
        top_mlp=SMALL.top_mlp,
        seed=0,
        device=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(batch: KeyedJaggedTensor) -> None:
        logits = model(torch.ones(batch.stride(), 13), batch)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)).backward()
        optimizer.step()

    return step


def sliding(size: int, hits: int, misses: int, lookups: int, *, features: int = 1) -> Iterator[KeyedJaggedTensor]:
    """Batches with so many distinct rows that were used last and so many that come for the first time in long."""
    generator = np.random.default_rng(0)
    order = generator.choice(size, min(size, _ROTATING_ROWS), replace=False)
    used = 0
    recent: deque[np.ndarray] = deque()
    for step in range(1_000_000):
        fresh = order[(used + np.arange(misses if step else hits + misses)) % order.size]
        used += fresh.size
        old = generator.choice(np.concatenate(list(recent)), hits, replace=False) if step and hits else fresh[:0]
        rows = np.concatenate([fresh, old])
        if fresh.size:
            recent.append(fresh)
        while len(recent) > 1 and sum(part.size for part in recent) - recent[0].size >= hits:
            recent.popleft()
        ids = np.concatenate([rows, generator.choice(rows, lookups - rows.size)])
        yield features_of([f"f{at}" for at in range(features)], generator.permutation(ids).reshape(features, -1))


def in_turns(
    runs: Mapping[
        str, tuple[CachedEmbeddingBagCollection, Callable[[KeyedJaggedTensor], None], Iterator[KeyedJaggedTensor]]
    ],
    setting: argparse.Namespace,
) -> dict[str, dict[str, float]]:
    """Times of steps with caches that train on streams of their own, in turns, and relative to the first."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(setting.steps // setting.block):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            cache, step, stream = runs[name]
            batches = [next(stream) for _ in range(setting.block)]
            if turn == setting.steps // setting.block // 2:
                cache.reset_counters()
            for index, batch in enumerate(batches):
                if index == setting.block // 4:
                    start = time.perf_counter()
                step(batch)
            times[name].append(1e3 * (time.perf_counter() - start) / (setting.block - setting.block // 4))
    first = next(iter(runs))
    steady = slice(len(times[first]) // 3, None)
    results = {}
    for name, (cache, _, _) in runs.items():
        counters = cache.counters()
        ratios = [own / base for own, base in zip(times[name][steady], times[first][steady], strict=True)]
        results[name] = {
            "ms_per_step": statistics.median(times[name][steady]),
            "relative_cost": statistics.median(ratios),
            "unique_misses_per_step": (counters.unique_misses or 0) / counters.steps,
        }
    return results


def _features(workload: SyntheticWorkload, index: int) -> np.ndarray:
    values: np.ndarray = workload.batch(index).features.values().numpy()
    return values.reshape(len(workload.tables), -1)


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    packages = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "torchrec", "numba", "numpy")
    installed = {dist.name.lower().replace("_", "-"): dist.version for dist in metadata.distributions() if dist.name}
    return {
        "device": f"cpu, {torch.get_num_threads()} threads",
        "cpu": models[0] if models else platform.processor(),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in packages if name in installed},
        "load_average": os.getloadavg()[0],
    }


FIGURES = {
    "planning": planning,
    "stage": stage,
    "table-size": table_size,
    "miss-cost": miss_cost,
    "misses": misses,
}
STEPS = {"planning": 120, "stage": 600, "table-size": 480, "miss-cost": 480, "misses": 250}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--rows", type=int, help="of all tables; default: those of the figure")
    parser.add_argument("--lookups", type=int, help="ids per batch; default: those of the figure")
    parser.add_argument("--ratio", type=float, help="cached rows as a share of all; default: that of the figure")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--steps", type=int, help="batches; default: those of the figure")
    parser.add_argument("--block", type=int, default=24, help="steps per turn")
    parser.add_argument("--out", type=Path, required=True)
    setting = parser.parse_args(arguments)
    setting.steps = setting.steps or STEPS[setting.figure]
    record = {"figure": setting.figure, "environment": environment(), "steps": setting.steps}
    record |= FIGURES[setting.figure](setting)
    setting.out.parent.mkdir(parents=True, exist_ok=True)
    setting.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
