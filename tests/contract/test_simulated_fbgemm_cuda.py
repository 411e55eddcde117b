"""The simulated cache of fbgemm against the real one on a CUDA device: its own statistics, and the row in every way."""

from typing import cast

import numpy as np
import pytest
import torch
from scenes import build, table
from torchrec import KeyedJaggedTensor

from suite.records.environment import VIRTUAL_DEVICE
from suite.simulate.models.fbgemm import FbgemmCacheModel
from suite.simulate.models.model import Setting, Span, Tally, replay
from suite.simulate.trace import Int64s, Trace
from systems.contract import CacheRatio, OptimizerKind
from systems.fbgemm.tbe import TBE
from systems.fbgemm.uvm import FbgemmUVMCaching
from systems.freq_cache.cache.plan import Ids

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("ties_as_fbgemm_has_them")]

TABLES = (table("users", 4000, 8, "clicked", "bought"), table("colours", 37, 8), table("shops", 900, 8))
"""One width, one pooling: one TBE, one cache. A table behind two features, and one smaller than a set."""

BATCHES = 40
SAMPLES = 256
RATIOS = [0.005, 0.05, 0.2, 1.0]
"""One set; sets that overflow at every batch; room for a batch and not for two; more slots than rows."""


@pytest.fixture(scope="module")
def ties_as_fbgemm_has_them(device: torch.device) -> None:
    if torch.cuda.get_device_name(device) == VIRTUAL_DEVICE:
        pytest.skip("of rows that are equally old the virtual device lets others go than fbgemm's sort does")


class CrowdedTrace(Trace):
    """Bags of 0 to 3 ids, low ids far more often than high ones."""

    name = "crowded"
    tables = tuple((t.name, t.num_embeddings) for t in TABLES)
    length = BATCHES
    batch_lookups = 3 * SAMPLES * sum(len(t.feature_names) for t in TABLES)

    def lengths_and_parts(self, index: int) -> tuple[Int64s, list[Int64s]]:
        draw = np.random.default_rng((7, index))
        rows = [t.num_embeddings for t in TABLES for _ in t.feature_names]
        lengths = draw.integers(0, 4, (len(rows), SAMPLES))
        parts = [(draw.random(n) ** 3 * r).astype(np.int64) for n, r in zip(lengths.sum(axis=1), rows, strict=True)]
        return lengths, parts

    def ids(self, index: int) -> Ids:
        _, parts = self.lengths_and_parts(index)
        ends = np.cumsum([part.size for part in parts], dtype=np.int64)
        of_feature = [start for t, start in zip(TABLES, self.table_starts, strict=True) for _ in t.feature_names]
        return Ids(np.concatenate(parts), ends, np.array(of_feature, np.int64))

    def features(self, index: int, device: torch.device) -> KeyedJaggedTensor:
        lengths, parts = self.lengths_and_parts(index)
        names = [name for t in TABLES for name in t.feature_names]
        ids = torch.from_numpy(np.concatenate(parts))
        return KeyedJaggedTensor(names, ids, lengths=torch.from_numpy(lengths.ravel())).to(device)

    def frequencies(self) -> list[Int64s]:
        raise AssertionError("fbgemm knows nothing beforehand")


TRACE = CrowdedTrace()


def real(
    policy: str, prefetch: str, ratio: float, device: torch.device, *, counted: bool = True
) -> tuple[FbgemmUVMCaching, TBE]:
    """A system that trained all batches, each announced as far ahead as the system looks, as `replay` does; its TBE."""
    variant = f"fbgemm_uvm_caching[policy={policy},memory=host_mapped,prefetch={prefetch}]"
    system = build(
        variant,
        device=device,
        tables=TABLES,
        kind=OptimizerKind.SGD,
        budget=CacheRatio(ratio=ratio),
        batch_lookups=TRACE.batch_lookups,
    )
    caching = cast(FbgemmUVMCaching, system)
    caching.count_traffic(counted)
    caching.reset_counters()
    coming = [TRACE.features(index, device) for index in range(BATCHES)]
    for announced in coming[: caching.look_ahead]:
        caching.prefetch(announced)
    for index, features in enumerate(coming):
        if caching.look_ahead and index + caching.look_ahead < BATCHES:
            caching.prefetch(coming[index + caching.look_ahead])
        caching(features).values().sum().backward()
    torch.cuda.synchronize()
    (tbe,) = caching.tbes
    return caching, tbe


def simulated(policy: str, prefetch: str, ratio: float) -> tuple[FbgemmCacheModel, Tally]:
    slots = max(1, int(sum(t.num_embeddings for t in TABLES) * ratio))
    setting = Setting(trace=TRACE, span=Span(counted_from=0, stop=BATCHES), slots=slots)
    model = FbgemmCacheModel(setting, {"policy": policy, "prefetch": prefetch})
    return model, replay(model)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("prefetch", ["off", "on"])
def test_lru_counts_what_fbgemm_and_the_system_around_it_count(
    prefetch: str, ratio: float, device: torch.device
) -> None:
    system, tbe = real("lru", prefetch, ratio, device)
    model, tally = simulated("lru", prefetch, ratio)
    details = tally.details
    of_calls = [details["calls"], tally.lookups, tally.unique_ids, tally.unique_misses]
    conflicts = [details["conflict_unique_misses"], details["conflict_lookups"]]
    assert tbe.uvm_cache_stats.tolist() == [*of_calls, *conflicts]
    assert model.cached_rows.tolist() == tbe.lxu_cache_state.tolist()
    if prefetch == "on":
        return
    counters = system.counters()
    assert counters.steps == tally.batches
    for name in ("lookups", "unique_ids", "unique_misses", "rows_fetched"):
        assert getattr(counters, name) == getattr(tally, name), name
    # the system takes evictions to be as many as insertions, the model counts them
    still_empty = int((model.cached_rows < 0).sum())
    assert counters.rows_written_back == tally.rows_written_back + model.slots - still_empty


@pytest.mark.parametrize("ratio", RATIOS)
def test_lfu_misses_what_the_miss_counter_counts(ratio: float, device: torch.device) -> None:
    _, tbe = real("lfu", "off", ratio, device)
    model, tally = simulated("lfu", "off", ratio)
    assert tbe.cache_miss_counter.tolist() == [tally.details["calls_with_misses"], tally.unique_misses]
    assert model.cached_rows.tolist() == tbe.lxu_cache_state.tolist()


@pytest.mark.parametrize("ratio", RATIOS)
def test_lfu_has_the_conflict_misses_that_fbgemm_counts(
    ratio: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run of its own, built to count these: the miss counter's lookups would be counted here too."""
    options = FbgemmUVMCaching.cache_options
    counting = {"gather_uvm_cache_stats": True}
    monkeypatch.setattr(FbgemmUVMCaching, "cache_options", lambda system: options(system) | counting)
    _, tbe = real("lfu", "off", ratio, device, counted=False)
    _, tally = simulated("lfu", "off", ratio)
    assert tbe.uvm_cache_stats.tolist() == [0, 0, 0, 0, 0, tally.details["conflict_lookups"]]
