"""Steps of embedding systems that take turns in one process, forth and back: the cache beside a full table, and itself.

Ratios are medians over turns, each against the first system in the same turn. Making batches, bag offsets included, is
outside the clock.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from planners import ZipfTables, ids_of, planner_of
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from suite.records.scales import SMALL
from suite.run.resources import available_host_bytes
from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer, SystemSpec
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.sizing import ROW_INDEX_BYTES
from workloads.dlrm import build_dlrm

RATIO = 0.05
"""Share of rows that have slots."""
MOVES, HALF_MOVES = "full_gpu and the moves", "full_gpu and the slots' side of the moves"
_BUILDS = 3
_LOAD_ROWS = 1 << 20
_ROTATING_ROWS = 1_000_000
"""Rows that miss in turn, at random places of the table, as many in any table."""
Step = Callable[[KeyedJaggedTensor], Tensor]
Run = tuple[EmbeddingSystem, Step, Iterator[KeyedJaggedTensor]]


def stage(setting: argparse.Namespace) -> dict[str, Any]:
    """Steps of 53,248 ids over 1 M x 32 fp32, 5 % cached, beside full tables of fbgemm on the same batches.

    Ids follow Zipf's law, see `ZipfTables`. The last answers of every turn must agree, with SGD bitwise. ColossalAI's
    cache takes part with SGD, which is all that it has. The full table takes part again with SGD, with the least that a
    cache adds to its step: see `with_moves`. Of several builds, whose memory lies elsewhere, the middle one counts.
    """
    lookups, rows = setting.lookups or 53_248, setting.rows or 1_000_000
    results = {}
    for tables in (26, 1):
        samples, names = lookups // tables, [f"t{at}" for at in range(tables)]
        stream = ZipfTables([rows // tables] * tables)
        frequencies = dict(zip(names, stream.frequencies(), strict=True))
        batches = [features_of(names, stream.ids(samples)) for _ in range(setting.steps)]
        gradient = torch.randn(samples, tables * setting.dim, generator=torch.Generator().manual_seed(0)) / samples
        for kind in (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD):
            spec = (frequencies, lookups, kind, setting.dim)
            builds = []
            for _ in range(_BUILDS):
                runs: dict[str, Run] = {}
                rival = ["colossalai_cache"] if kind is OptimizerKind.SGD else []
                for name in ("full_gpu", *(f"freq_cache[look_ahead={ahead}]" for ahead in (0, 1, 4)), *rival):
                    system, stream_of = system_of(name, *spec), iter(batches)
                    runs[name] = (system, training(system, stream_of, gradient), stream_of)
                for name in (MOVES, HALF_MOVES) if kind is OptimizerKind.SGD else ():
                    system, stream_of = system_of("full_gpu", *spec), iter(batches)
                    step, moves = training(system, stream_of, gradient), moves_of(frequencies, batches)
                    step = with_moves(step, moves, rows=rows, dim=setting.dim, whole=name is MOVES)
                    runs[name] = (system, step, stream_of)
                builds.append(in_turns(runs, setting, exact=kind is OptimizerKind.SGD))
            found = {
                name: {key: statistics.median(build[name][key] for build in builds) for key in one}
                for name, one in builds[0].items()
            }
            for one in found.values():
                one["throughput_relative_to_full"] = 1 / one["relative_cost"]
            results[f"{tables} tables, {kind.value}"] = found
    threads = torch.get_num_threads()
    return {"lookups": lookups, "rows": rows, "dim": setting.dim, "threads": threads, "results": results}


def moves_of(frequencies: Mapping[str, Tensor], batches: Sequence[KeyedJaggedTensor]) -> Iterator[list[Tensor]]:
    """Of every batch the rows that miss, their slots, the changed rows that leave and theirs, int64, as planned."""
    sizes = [counts.numel() for counts in frequencies.values()]
    planner = planner_of("static", [counts.numpy() for counts in frequencies.values()], ratio=RATIO)
    plans = []
    for batch in batches:
        planner.announce(planner.distinct(ids_of(batch.values().view(len(sizes), -1).numpy(), sizes)), changes=True)
        plan = planner.plan()
        moved = (plan.fetch_rows, plan.fetch_slots, plan.back_rows, plan.back_slots)
        plans.append([torch.from_numpy(numbers).long() for numbers in moved])
    return iter(plans)


def with_moves(step: Step, moves: Iterator[list[Tensor]], *, rows: int, dim: int, whole: bool) -> Step:
    """A step of a full table, and behind it the bare moving of the rows that a cache would move for that batch.

    They are copied between slots and a table, without a plan, staging or anything else. With perfect look-ahead another
    thread reads and writes the table: without `whole` only the slots' side is copied.
    """
    table, slots = torch.randn(rows, dim), torch.randn(int(rows * RATIO), dim)
    arrived = torch.randn(slots.shape)

    def step_and_moves(batch: KeyedJaggedTensor) -> Tensor:
        answer = step(batch)
        enter, enter_slots, leave, leave_slots = next(moves)
        left, come = slots.index_select(0, leave_slots), arrived[: enter.numel()]
        if whole:
            table.index_copy_(0, leave, left)
            come = table.index_select(0, enter)
        slots.index_copy_(0, enter_slots, come)
        return answer

    return step_and_moves


def table_size(setting: argparse.Namespace) -> dict[str, Any]:
    """A step by rows of the table, with equal slots and misses: alone, then that of the DLRM of `--scale small`."""
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
    gradient = torch.full((lookups // 26, 26 * setting.dim), 1e-3)
    steps = {
        "embedding step": {size: training(cache, streams[size], gradient) for size, cache in caches.items()},
        "DLRM step": {size: dlrm_step(cache) for size, cache in caches.items()},
    }
    results = {}
    for what, by_size in steps.items():
        runs = {f"{size:,} rows": (caches[size], step, streams[size]) for size, step in by_size.items()}
        results[what] = in_turns(runs, setting)
    return {"slots": slots, "dim": setting.dim, "lookups": lookups, "results": results}


def miss_cost(setting: argparse.Namespace) -> dict[str, Any]:
    """A step by its misses, 20,000 distinct rows of 1 M each time, and the line through them."""
    lookups, distinct = setting.lookups or 53_248, 20_000
    counts, gradient = (0, 2_500, 5_000, 10_000, 15_000, 20_000), torch.full((lookups, setting.dim), 1e-3)
    runs = {}
    for misses in counts:
        cache = cached(1_000_000, 50_000, setting.dim, lookups)
        stream = sliding(1_000_000, distinct - misses, misses, lookups)
        runs[f"{misses:,} misses"] = (cache, training(cache, stream, gradient), stream)
    results = in_turns(runs, setting)
    least = next(iter(results.values()))["ms_per_step"]
    times = least * np.array([found["relative_cost"] for found in results.values()])  # steps of one turn each
    slope, intercept = np.polyfit(counts, times, 1)
    spread = 1 - np.sum((times - slope * np.array(counts) - intercept) ** 2) / np.sum((times - times.mean()) ** 2)
    line = {"ns_per_miss": 1e6 * float(slope), "ms_without": float(intercept), "r_squared": float(spread)}
    return {"lookups": lookups, "distinct_rows": distinct, "dim": setting.dim, "line": line, "results": results}


def in_turns(runs: Mapping[str, Run], setting: argparse.Namespace, *, exact: bool | None = None) -> dict[str, Any]:
    """Times of systems' steps on streams of their own, and relative to the first.

    Where `exact` is given, the last answers of every turn must agree, bitwise or but for rounding.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    first, turns = next(iter(runs)), setting.steps // setting.block - 1  # the last block is left to look-ahead
    for turn in range(turns):
        answers: dict[str, Tensor] = {}
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            system, step, stream = runs[name]
            batches = [next(stream) for _ in range(setting.block)]
            if turn == turns // 2:
                system.reset_counters()
            time.sleep(0.02)  # what the turn before left to threads is over
            for index, batch in enumerate(batches):
                if index == setting.block // 4:  # by now the processor's caches are this system's
                    start = time.perf_counter()
                answers[name] = step(batch)
            times[name].append(1e3 * (time.perf_counter() - start) / (setting.block - setting.block // 4))
        if exact is not None:
            tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-5}
            for name, answer in answers.items():
                torch.testing.assert_close(answer, answers[first], **tolerance, msg=lambda text, n=name: f"{n}: {text}")
    steady = slice(len(times[first]) // 3, None)
    results = {}
    for name, (system, _, _) in runs.items():
        counters = system.counters()
        ratios = [own / base for own, base in zip(times[name][steady], times[first][steady], strict=True)]
        results[name] = {
            "ms_per_step": statistics.median(times[name][steady]),
            "relative_cost": statistics.median(ratios),
            "unique_misses_per_step": (counters.unique_misses or 0) / (counters.steps or 1),
            "unique_hit_rate": 1 - (counters.unique_misses or 0) / (counters.unique_ids or 1),
        }
    return results


def training(system: EmbeddingSystem, stream: Iterator[KeyedJaggedTensor], gradient: Tensor) -> Step:
    """Look up, backward and update of the batch that came before a given one by as many as the system looks ahead."""
    waiting: deque[KeyedJaggedTensor] = deque()
    for _ in range(system.look_ahead):
        waiting.append(next(stream))
        system.prefetch(waiting[-1])

    def step(batch: KeyedJaggedTensor) -> Tensor:
        if system.look_ahead:
            system.prefetch(batch)
        waiting.append(batch)
        values = system(waiting.popleft()).values()
        values.backward(gradient)
        return values.detach()

    return step


def dlrm_step(cache: CachedEmbeddingBagCollection) -> Step:
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

    def step(batch: KeyedJaggedTensor) -> Tensor:
        logits = model(torch.ones(batch.stride(), 13), batch)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)).backward()
        optimizer.step()
        return logits.detach()

    return step


def features_of(names: list[str], ids: np.ndarray) -> KeyedJaggedTensor:
    """Ids `[features, samples]`, one per bag.

    With their offsets: were these made at the first lookup, then whoever came first would pay for them, and what stays
    behind of them would break up the memory that answers are written to, which costs more than a lookup.
    """
    values, ends = torch.from_numpy(ids.reshape(-1)), torch.arange(ids.size + 1)
    return KeyedJaggedTensor(names, values, lengths=torch.ones_like(values), offsets=ends, stride=ids.shape[1])


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


def system_of(
    name: str, frequencies: Mapping[str, Tensor], lookups: int, kind: OptimizerKind, dim: int
) -> EmbeddingSystem:
    """A system over tables with as many rows as have frequencies, loaded with equal rows."""
    chosen = registry.Variant.parse(name)
    made = registry.load(chosen)
    spec = SystemSpec(
        tables=tuple(
            EmbeddingBagConfig(name=table, feature_names=[table], num_embeddings=counts.numel(), embedding_dim=dim)
            for table, counts in frequencies.items()
        ),
        optimizer=SparseOptimizer(kind=kind, lr=0.05),
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=RATIO),
        batch_lookups=lookups,
        frequencies=frequencies,
        parameters=registry.resolved_parameters(chosen, made),
    )
    system = made(spec)
    generator = torch.Generator().manual_seed(0)
    for table in spec.tables:
        for start in range(0, table.num_embeddings, _LOAD_ROWS):
            rows = min(_LOAD_ROWS, table.num_embeddings - start)
            system.load_rows(table.name, start, Rows(torch.randn(rows, dim, generator=generator)))
    return system
