"""Misses of caching policies over time on streams that change, as a table and a figure.

    python results/tracks/drift_board.py --out results/tracks

Every policy without look-ahead replays the tracks of a synthetic stream, from the middle of its training split on, and
real rows in the order of time: samples in the folder that EMBEDDING_OFFLOAD_DATA names (default: ../shared/data). Every
cache is as `suite simulate` has it; those that learn start empty, and the first third of the batches, which fills them,
is in the figure but in no sum. `static` has the frequencies of the whole training split, `static, first tenth` those of
its beginning. The folder gets `board.json` and `board.svg`; misses are the same on every machine.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from suite.records.environment import capture
from suite.records.store import write_json
from suite.simulate.models.model import CannotReplay, Setting, Span, replay
from suite.simulate.models.registry import build
from suite.simulate.trace import Int32s, Int64s, Trace
from suite.tables.formatting import COLOURS, look
from systems.freq_cache.cache.plan import Ids
from systems.registry import Variant
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.tracks import TRACKS

PREFIX = 0.1
BIN = 4
"""Batches whose mean is a point of the figure."""
SAMPLES = {
    "avazu, real rows": ("avazu_sample.csv.gz", ",", 0, 3),
    "criteo_kaggle, real rows": ("criteo_kaggle_sample.tsv.gz", "\t", None, 14),
}
"""Samples of real rows in the order of time: file, separator, header, and first column of ids."""
OURS, FBGEMM, COLOSSALAI = "freq_cache", "fbgemm_uvm_caching", "colossalai"
POLICIES = {
    "static": Variant(OURS, (("policy", "static"),)),
    "static, first tenth": Variant(OURS, (("policy", "static"),)),
    **{name: Variant(OURS, (("policy", name),)) for name in ("lfu", "lru")},
    "fae": Variant("fae"),
    **{f"fbgemm {name}": Variant(FBGEMM, (("policy", name),)) for name in ("lru", "lfu")},
    **{f"colossalai {name}": Variant(COLOSSALAI, (("policy", name),)) for name in ("dataset", "lfu")},
    "belady": Variant("belady"),
}
LINES = {
    "static": {"color": COLOURS[0], "linestyle": "--"},
    "static, first tenth": {"color": COLOURS[5], "linestyle": "--"},
    **{
        name: {"color": COLOURS[at]}
        for at, name in zip((1, 3, 4, 6), ("lfu", "lru", "fbgemm lru", "fbgemm lfu"), strict=True)
    },
    "belady": {"color": "black"},
}
"""Policies in the figure, and how their lines look: dashed, if they are given frequencies."""


class Held(Trace):
    """Batches that have been made, one id per table and sample, table after table."""

    def __init__(self, tables: Sequence[tuple[str, int]], batches: Sequence[Int32s], counts: Sequence[Int64s]) -> None:
        self.tables, self.length, self.batch_lookups = tuple(tables), len(batches), batches[0].size
        self._batches, self._counts = batches, list(counts)

    def ids(self, index: int) -> Ids:
        values, tables = self._batches[index], len(self.tables)
        ends = np.arange(1, tables + 1, dtype=np.int64) * (values.size // tables)
        return Ids(values.astype(np.int64), ends, self.table_starts)

    def frequencies(self) -> list[Int64s]:
        return self._counts


Streams = Iterator[tuple[str, float, Callable[[float], Held]]]
"""Name, cached share of the rows, and what makes the trace with frequencies of so much of the training split."""


def synthetic(setting: argparse.Namespace) -> Streams:
    """The stream without a track, and with each."""
    for name in (setting.dataset, *(f"{setting.dataset}@{track}" for track in TRACKS)):
        workload = SyntheticWorkload.create(name, batch_size=setting.batch_size, seed=0, max_rows=setting.rows)
        first = int(setting.start * workload.epoch_rows()) // setting.batch_size
        batches = [
            workload.batch(index).features.values().numpy().astype(np.int32)
            for index in range(first, first + setting.steps)
        ]

        def held(prefix: float, workload: SyntheticWorkload = workload, batches: list[Int32s] = batches) -> Held:
            return Held(workload.tables, batches, [counts.numpy() for counts in workload.frequencies(prefix).values()])

        yield name, setting.ratio, held


def real(setting: argparse.Namespace) -> Streams:
    """Samples of real rows in the order of time, with ids numbered through."""
    folder = Path(os.environ.get("EMBEDDING_OFFLOAD_DATA") or Path(__file__).parents[3] / "shared" / "data")
    for name, (file, separator, header, first) in SAMPLES.items():
        if not (folder / file).exists():
            sys.stderr.write(f"{folder / file} is absent: set EMBEDDING_OFFLOAD_DATA to have real rows too\n")
            continue
        read = pd.read_csv(folder / file, sep=separator, header=header, dtype=str).iloc[:, first:].fillna("")
        ids = np.stack([np.unique(read[column], return_inverse=True)[1] for column in read])
        tables = [(str(column), int(mine.max()) + 1) for column, mine in zip(read, ids, strict=True)]
        count, samples = ids.shape[1] // setting.real_batch // BIN * BIN, setting.real_batch
        batches = [ids[:, n * samples : (n + 1) * samples].reshape(-1).astype(np.int32) for n in range(count)]

        def held(prefix: float, ids: Any = ids, tables: Any = tables, batches: list[Int32s] = batches) -> Held:
            known = ids[:, : int(prefix * ids.shape[1])]
            counts = [np.bincount(mine, minlength=rows) for mine, (_, rows) in zip(known, tables, strict=True)]
            return Held(tables, batches, counts)

        yield name, setting.real_ratio, held


def replayed(ratio: float, held: Callable[[float], Held]) -> dict[str, Any]:
    """Misses of every policy over one stream, by stretches of `BIN` batches."""
    whole = held(1.0)
    filled = whole.length // 3 // BIN * BIN
    slots = max(1, int(whole.rows * ratio))
    found: dict[str, Any] = {}
    unique: list[float] = []
    for name, variant in POLICIES.items():
        trace = held(PREFIX) if name.endswith("first tenth") else whole
        span = Span(counted_from=filled if name == "belady" else 0, stop=whole.length)
        began = time.perf_counter()
        try:
            tally = replay(build(variant, Setting(trace=trace, span=span, slots=slots)))
        except CannotReplay as reason:
            sys.stderr.write(f"  {name}: {reason}\n")
            continue
        points = np.array(tally.over_time).reshape(-1, BIN, 2).mean(axis=1)
        unique, found[name] = points[:, 0].tolist(), points[:, 1].tolist()
        sys.stderr.write(f"  {name:<22}{np.mean(found[name][-len(unique) * 2 // 3 :]):>12,.1f}")
        sys.stderr.write(f"{time.perf_counter() - began:>8.1f} s\n")
    return {
        "rows": whole.rows,
        "slots": slots,
        "batch_ids": whole.batch_lookups,
        "batches": whole.length,
        "batches_filling": filled,
        "unique_ids": float(np.mean(unique)),
        "misses": found,
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """Misses of a batch over time: a panel for each stream, a line for each policy that stands for others as well."""
    with look("drift board"):
        figure = Figure(figsize=(9.5, 7.5), layout="constrained")
        panels = figure.subplots(-(-len(record["streams"]) // 2), 2).reshape(-1)
        for axes, (name, stream) in zip(panels, record["streams"].items(), strict=False):
            points = np.array(next(iter(stream["misses"].values())))
            batches = record["bin_batches"] * (0.5 + np.arange(points.size))
            for policy, style in LINES.items():
                misses = stream["misses"].get(policy, [])
                axes.plot(batches[points.size - len(misses) :], misses, label=policy, linewidth=1.1, **style)
            axes.axvspan(0, stream["batches_filling"], color="#F2F2F2", zorder=0)
            axes.set(title=name, xlabel="batch", ylabel="unique misses of a batch")
            axes.set_ylim(bottom=0, top=1.5 * float(np.mean(stream["misses"]["lru"][-points.size // 2 :])))
        for axes in panels[len(record["streams"]) :]:
            axes.remove()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


OPTIMUM = "belady"
SHOWN = ("static", "static, first tenth", "lfu", "lru", "fbgemm lru", "fbgemm lfu", OPTIMUM)
"""Policies of the page's table."""


def on_page(record: Mapping[str, Any]) -> str:
    """The table of docs/synthetic.md: misses per batch, without the batches that fill the caches."""
    lines = ["| stream | " + " | ".join(SHOWN) + " |", "|---|" + "--:|" * len(SHOWN)]
    for name, stream in record["streams"].items():
        points = len(stream["misses"][OPTIMUM])
        means = [np.mean(stream["misses"][policy][-points:]) for policy in SHOWN]
        lines.append(f"| {name} | " + " | ".join(f"{mean:,.0f}" for mean in means) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="criteo_kaggle", help="a synthetic one with one id per table and sample")
    parser.add_argument("--rows", type=int, help="of all tables; default: as published")
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--ratio", type=float, default=0.01, help="cached rows as a share of all")
    parser.add_argument("--start", type=float, default=0.5, help="share of the training split before the first batch")
    parser.add_argument("--steps", type=int, default=384, help="batches of each synthetic stream")
    parser.add_argument("--real-batch", type=int, default=32, help="samples per batch of real rows")
    parser.add_argument("--real-ratio", type=float, default=0.05, help="their cached share")
    parser.add_argument("--out", type=Path, required=True, help="a directory")
    setting = parser.parse_args(arguments)
    setting.steps -= setting.steps % BIN
    streams: dict[str, Any] = {}
    for make in (synthetic, real):
        for name, ratio, held in make(setting):
            sys.stderr.write(f"{name}\n")
            streams[name] = replayed(ratio, held)
    record = {
        "figure": "drift board",
        "environment": capture().model_dump(mode="json"),
        "bin_batches": BIN,
        "ratio": setting.ratio,
        "real_ratio": setting.real_ratio,
        "start": setting.start,
        "streams": streams,
    }
    write_json(setting.out / "board.json", record, indent=None)
    draw(record, setting.out / "board.svg")
    sys.stdout.write(on_page(record) + "\n")


if __name__ == "__main__":
    main()
