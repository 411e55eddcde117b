"""A cell of three levels verifies three levels, and `levels=2` two."""

import pytest
import torch
from scenes import optimizer

from suite.run.cell.training import tables_of
from suite.run.cell.verify import verify
from systems.contract import HostBytes, OptimizerKind, SystemSpec
from systems.freq_cache import FreqCache
from systems.freq_cache.tiers.ram_level import RamTier
from systems.registry import Variant, resolved_parameters
from workloads.streams.synthetic import SyntheticWorkload


@pytest.mark.parametrize(
    ("parameters", "levels"), [({}, 3), ({"slow_rows": "fp16"}, 3), ({"levels": "2"}, 2)], ids=["fp32", "fp16", "two"]
)
def test_verification_moves_rows_through_ram_where_the_cell_has_that_level(
    parameters: dict[str, str], levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted, evict = [], RamTier.evict
    monkeypatch.setattr(RamTier, "evict", lambda *given: (evicted.append(given[1].numel()), evict(*given)))
    workload = SyntheticWorkload.create("avazu", batch_size=64, seed=0, max_rows=3000)
    variant = Variant("freq_cache", tuple({"tier": "file", **parameters}.items()))
    spec = SystemSpec(
        tables=tables_of(workload.tables, 16),
        optimizer=optimizer(OptimizerKind.SGD),
        device=torch.device("cpu"),
        budget=HostBytes(total_bytes=64 << 20, device_bytes=4 << 20),
        batch_lookups=workload.batch_lookups,
        frequencies=workload.frequencies(),
        parameters=resolved_parameters(variant, FreqCache),
    )
    found = verify(FreqCache, spec=spec, workload=workload, seed=0, beat=lambda: None)
    assert found.passed
    assert (sum(evicted) > 0) == (levels == 3)
