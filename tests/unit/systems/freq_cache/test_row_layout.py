"""Records of rows of any width and type: what goes in comes out, and nobody sees what fills a record up."""

from pathlib import Path

import pytest
import torch

from systems.answers import Rows
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import HostTier


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("dim", [1, 6, 8])
def test_rows_come_back_from_a_tier_as_their_type_has_them(
    dim: int, dtype: torch.dtype, on_disk: bool, tmp_path: Path
) -> None:
    layout = RowLayout(dim, dtype, {"sum": 1, "exp_avg": -(-dim // 4) * 4})
    tier = FileTier(tmp_path, rows=5, layout=layout) if on_disk else HostTier(rows=5, layout=layout)
    given = Rows(3 + torch.rand(5, dim), {"sum": torch.rand(5), "exp_avg": torch.rand(5, dim)})
    tier.write(torch.arange(5), layout.pack(given))
    records = layout.empty(5)
    tier.read(torch.arange(5), records)
    found = layout.unpack(records)
    if dtype is torch.int8:
        # a record's other columns do not widen the range, which sets the error
        most = (given.weights.amax(1) - given.weights.amin(1))[:, None] / 505 + 1e-6
        assert ((found.weights - given.weights).abs() <= most).all()
    else:
        assert torch.equal(found.weights, given.weights.to(dtype).float())
    for name, values in given.state.items():
        assert torch.equal(found.state[name], values)
    assert not layout.weights(records)[:, dim:].any()


def test_state_that_is_not_named_is_zero() -> None:
    layout = RowLayout(3, torch.float32, {"sum": 1, "exp_avg": 4})
    found = layout.unpack(layout.pack(Rows(torch.ones(2, 3), {})))
    assert not found.state["sum"].any()
    assert found.state["exp_avg"].shape == (2, 3)
    assert not found.state["exp_avg"].any()
