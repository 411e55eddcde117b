"""What fbgemm's caches counted on a device, beside what was predicted for the same batches."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from rich.console import Console

from suite.records.base import Model
from suite.records.options import BadOption
from suite.simulate.curves.curves import miss_curves
from suite.simulate.models.fbgemm.cache import FbgemmCacheModel, uvm_cache_stats
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.traces.trace import Int64s, Trace
from suite.tables.terminal import print_line, print_table
from systems.freq_cache.planner.planner import Ids

Row = tuple[str, int, int, int | None]
"""A statistic: its name, what fbgemm counted, what its simulated cache counts, and what the curve says."""


class CountedCache(Model):
    """One table-batched embedding (TBE) with an LRU cache."""

    tables: list[str] = Field(min_length=1)
    """Its cached tables, in its order."""
    slots: int = Field(gt=0)
    """Rows of its cache, `tbe.lxu_cache_weights.shape[0]`."""
    prefetch: bool = False
    """Whether it was made with `prefetch_pipeline`."""
    uvm_cache_stats: list[int] = Field(min_length=6, max_length=6)
    """`tbe.get_uvm_cache_stats(use_local_cache=False).tolist()`."""


class Counted(Model):
    """What a run counted, from the first batch of the stream on."""

    warmup_batches: int = Field(default=0, ge=0)
    """Trained before `tbe.reset_uvm_cache_stats()`."""
    counted_batches: int = Field(gt=0)
    """Trained after it."""
    caches: list[CountedCache]
    """Of every TBE that has one."""


class SomeTables(Trace):
    """The ids of some tables of a trace.

    Args:
        trace: All tables.
        names: Those to keep, in the order in which their rows are numbered.

    Raises:
        BadOption: the trace has no such table.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        places = {name: place for place, (name, _) in enumerate(trace.tables)}
        if unknown := [name for name in names if name not in places]:
            raise BadOption(f"{trace.name} has no table {', '.join(unknown)}: it has {', '.join(places)}")
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


def check_counted(trace: Trace, counted: Counted) -> None:
    """Raises `BadOption`: the trace is shorter than the run, or has other tables."""
    batches = counted.warmup_batches + counted.counted_batches
    if batches > trace.length:
        raise BadOption(f"--counted: {batches} batches were trained, {trace.name} has {trace.length}")
    for cache in counted.caches:
        SomeTables(trace, cache.tables)


def beside(trace: Trace, counted: Counted) -> list[tuple[CountedCache, list[Row]]]:
    """The statistics of every cache, counted and predicted, of what `check_counted` lets pass.

    The simulated cache has fbgemm's sets of 32 ways and is exact; the curve is that of an LRU cache without sets, which
    torchrec's planner goes by.
    """
    span = Span(counted_from=counted.warmup_batches, stop=counted.warmup_batches + counted.counted_batches)
    found = []
    for cache in counted.caches:
        part = SomeTables(trace, cache.tables)
        parameters = {"policy": "lru", "prefetch": "on" if cache.prefetch else "off"}
        simulated = uvm_cache_stats(
            replay(FbgemmCacheModel(Setting(trace=part, span=span, slots=cache.slots), parameters))
        )
        curve = miss_curves(part, span).pooled
        expected = {
            "num_requested_indices": curve.lookups,
            "num_unique_indices": curve.unique_ids,
            "num_unique_misses": curve.misses(cache.slots),
        }
        pairs = zip(simulated.items(), cache.uvm_cache_stats, strict=True)
        found.append((cache, [(name, real, value, expected.get(name)) for (name, value), real in pairs]))
    return found


def show_beside(found: list[tuple[CountedCache, list[Row]]], console: Console) -> None:
    """Print a table per cache."""
    for cache, rows in found:
        some = ", ".join(cache.tables[:4]) + (", ..." if len(cache.tables) > 4 else "")
        print_line(console, f"\n{cache.slots:,} slots of fbgemm's for {len(cache.tables)} tables: {some}", style="bold")
        lines = [
            [name, f"{real:,}", f"{simulated:,}", "" if curve is None else f"{curve:,}", f"{simulated - real:+,}"]
            for name, real, simulated, curve in rows
        ]
        print_table(console, ["statistic", "counted", "simulated", "LRU curve", "simulated\n- counted"], lines)
