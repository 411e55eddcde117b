"""torchrec's planner, told miss-ratio curves by `suite curves --torchrec`: what it proposes, expects, and would miss.

    python results/simulate/torchrec_planner.py --out results/simulate/torchrec_planner.json

Per workload and budget of device memory, `EmbeddingShardingPlanner` with `EmbeddingOffloadScaleupProposer` plans
for one device. Its proposal, and our division of as many slots, are replayed batch by batch: an LRU cache of its own
for each cached table, which the planner reckons with, and one cache of fbgemm for all of them, which torchrec builds
unless `use_one_tbe_per_table` is set. No device is needed.
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

from suite.records.command_line import parse_bytes
from suite.records.environment import capture
from suite.records.store import write_json
from suite.simulate.curves import Curves, divide_greedily, miss_curves
from suite.simulate.models.fbgemm import FbgemmCacheModel
from suite.simulate.models.lru import LruModel
from suite.simulate.models.model import CacheModel, Setting, Span, Tally
from suite.simulate.options import open_trace
from suite.simulate.planner_inputs import PlannerInputs, planner_inputs
from suite.simulate.trace import DistinctRows, Int64s, Seen, Trace, replayed
from systems.freq_cache.cache.plan import Ids

DIM = 128
BUDGETS = {
    "criteo_kaggle": ("512MiB", "1GiB", "2GiB"),
    "avazu": ("256MiB", "512MiB", "1GiB"),
    "criteo_1tb": ("1GiB", "2GiB", "4GiB"),
}
"""Device memory for embeddings, of 17, 5 and 91 GB of rows."""


class SomeTables(Trace):
    """The ids of some tables of a trace, whose rows are numbered in the order of `names`."""

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        places = {name: place for place, (name, _) in enumerate(trace.tables)}
        self._kept = [places[name] for name in names]
        self.name = trace.name
        self.tables = tuple(trace.tables[place] for place in self._kept)
        self.length = trace.length
        self.batch_lookups = trace.batch_lookups
        self._trace = trace

    def ids(self, index: int) -> Ids:
        return self.of(self._trace.ids(index))

    def of(self, ids: Ids) -> Ids:
        """These tables' part of the ids of all."""
        parts = np.split(ids.values, ids.ends[:-1])
        kept = [parts[place] for place in self._kept]
        return Ids(np.concatenate(kept), np.cumsum([part.size for part in kept]), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        every = self._trace.frequencies()
        return [every[place] for place in self._kept]


def proposed(inputs: PlannerInputs, *, hbm_bytes: int, dim: int = DIM) -> dict[str, tuple[int, float]]:
    """Slots by table that torchrec's planner proposes, all rows where it promotes one, and misses it expects."""
    constraints = inputs.constraints()
    configs = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=table.stats.height, embedding_dim=dim)
        for name, table in inputs.tables.items()
    ]
    topology = Topology(world_size=1, compute_device="cuda", hbm_cap=hbm_bytes, ddr_cap=1 << 40)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=inputs.batch_size,
        proposer=EmbeddingOffloadScaleupProposer() if inputs.slots is None else None,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=NoopEmbeddingStats(),
    )
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    plan = planner.plan(collection, [EmbeddingBagCollectionSharder()]).plan[""]
    found = {}
    for name, table in inputs.tables.items():
        kernel, params = plan[name].compute_kernel, plan[name].cache_params
        if kernel != "fused_uvm_caching":
            found[name] = (table.stats.height, 0.0)
            continue
        rate = params.stats.expected_miss_rate(params.load_factor)
        found[name] = (int(params.load_factor * table.stats.height), rate * params.stats.expected_lookups)
    return found


def replayed_misses(trace: Trace, span: Span, divisions: Sequence[Mapping[str, int]]) -> list[tuple[float, float]]:
    """Misses per batch of each division of slots: caches of their own, and one of fbgemm's for the same tables.

    All are replayed in one pass. Tables with a slot for every row lie on the device.
    """
    rows = dict(trace.tables)
    parts: dict[tuple[str, ...], SomeTables] = {}
    watched: list[tuple[tuple[str, ...], CacheModel, Tally]] = []
    found: list[tuple[list[Tally], list[Tally]]] = []

    def watch(names: tuple[str, ...], slots: int, model: type[CacheModel], **parameters: str) -> Tally:
        part = parts.setdefault(names, SomeTables(trace, names))
        tally = Tally()
        watched.append((names, model(Setting(trace=part, span=span, slots=slots), parameters), tally))
        return tally

    for division in divisions:
        some = {name: slots for name, slots in division.items() if slots < rows[name]}
        own = [watch((name,), slots, LruModel) for name, slots in some.items()]
        together = (tuple(some), sum(some.values()), FbgemmCacheModel)
        found.append((own, [watch(*together, policy="lru", prefetch="off")] if some else []))
    distinct = {names: DistinctRows(part.rows) for names, part in parts.items()}
    for seen in replayed(trace, 0, span.stop):
        ids = {names: part.of(seen.ids) for names, part in parts.items()}
        batches = {names: Seen(seen.number, own, distinct[names].of(own)) for names, own in ids.items()}
        for names, model, tally in watched:
            model.announce(batches[names])
            model.step(batches[names], tally if seen.number >= span.counted_from else None)
    counted = span.stop - span.counted_from
    return [
        (sum(tally.unique_misses for tally in own) / counted, sum(tally.unique_misses for tally in shared) / counted)
        for own, shared in found
    ]


def compared(trace: Trace, curves: Curves, *, batch_size: int, hbm_bytes: int, dim: int = DIM) -> dict[str, Any]:
    """The planner's proposal for a budget beside our division of as many slots."""
    proposal = proposed(planner_inputs(curves, batch_size=batch_size), hbm_bytes=hbm_bytes, dim=dim)
    slots = sum(count for count, _ in proposal.values())
    ours = divide_greedily(curves.tables, slots, resident=True)
    divisions = [
        {name: count for name, (count, _) in proposal.items()},
        dict(zip(proposal, ours, strict=True)),
    ]
    cached = [curve.misses(count) for curve, count in zip(curves.tables, ours, strict=True) if count < curve.rows]
    (own, shared), (our_own, our_shared) = replayed_misses(trace, curves.span, divisions)
    return {
        "hbm_bytes": hbm_bytes,
        "slots": slots,
        "share_of_rows": slots / trace.rows,
        "torchrec": {
            "slots": divisions[0],
            "expected_misses": sum(misses for _, misses in proposal.values()),
            "misses": own,
            "misses_in_one_fbgemm_cache": shared,
        },
        "ours": {
            "slots": divisions[1],
            "expected_misses": sum(cached) / curves.batches,
            "misses": our_own,
            "misses_in_one_fbgemm_cache": our_shared,
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per workload and budget, and leave a record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(BUDGETS))
    parser.add_argument("--scale", default="full")
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--batches", type=int, default=150, help="a third of them warms up")
    parser.add_argument("--budgets", help="device memory, as in 1GiB,2GiB; default: three by workload")
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every table and every way of sharding it
    span = Span(counted_from=asked.batches // 3, stop=asked.batches)
    results: dict[str, list[dict[str, Any]]] = {}
    for workload in asked.workloads.split(","):
        trace = open_trace(workload=workload, scale=asked.scale, batch_size=asked.batch_size)
        curves = miss_curves(trace, span, per_table=True)
        for budget in BUDGETS[workload] if asked.budgets is None else asked.budgets.split(","):
            hbm = parse_bytes(budget, flag="--budgets")
            found = compared(trace, curves, batch_size=asked.batch_size, hbm_bytes=hbm, dim=asked.dim)
            results.setdefault(workload, []).append(found)
            sys.stdout.write(_line(workload, budget, found))
            sys.stdout.flush()
    if asked.out is not None:
        settings = {name: getattr(asked, name) for name in ("scale", "batch_size", "batches", "dim")}
        environment = capture().model_dump(mode="json")
        write_json(asked.out, {"environment": environment, **settings, "results": results})


def _line(workload: str, budget: str, found: Mapping[str, Any]) -> str:
    theirs, ours = found["torchrec"], found["ours"]
    return (
        f"{workload:<15}{budget:>8}{found['slots']:>13,} slots: torchrec expects {theirs['expected_misses']:,.0f} "
        f"misses per batch, has {theirs['misses']:,.0f}, in one cache {theirs['misses_in_one_fbgemm_cache']:,.0f}; "
        f"our division {ours['misses']:,.0f}, in one cache {ours['misses_in_one_fbgemm_cache']:,.0f}\n"
    )


if __name__ == "__main__":
    main()
