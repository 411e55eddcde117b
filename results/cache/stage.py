"""What an embedding step of the cache costs against full tables of fbgemm's on the same batches.

    python results/cache/stage.py --out results/cache/stage.json

A step plans, moves, looks up, goes backward and updates: 53,248 ids over 1 M x 32 fp32, 5 % cached. Ids follow Zipf's
law with exponent 1.05 in every table, ranks scrambled over the rows, and no batch comes twice; making them, bag offsets
included, is outside the clock. Systems run in one process, in blocks of steps that take turns, forth and back; ratios
are medians over the blocks of one turn each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import figure
import numpy as np
import torch
from one_table import features_of
from torch import Tensor
from torchrec import EmbeddingBagConfig
from zipf_tables import ZipfTables

from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer, SystemSpec

_LOAD_ROWS = 1 << 20


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


def main(arguments: Sequence[str] | None = None) -> None:
    figure.leave_record("stage", stage, steps=600, words=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
