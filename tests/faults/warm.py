"""Imported once by the process that others are forked from: the cache, and its compiled loops loaded.

No thread may be left behind: torch computes on the one that is there, and the tier ends its own.
"""

import tempfile
from pathlib import Path

import torch

import systems.freq_cache  # noqa: F401 - for those that are forked
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.faults.kept_tiers import KeptTier

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as _folder:
    _layout = RowLayout(4, torch.float32, {})
    _tier = KeptTier(Path(_folder), rows=8, layout=_layout)
    for _ in range(4):  # the later ones to positions that are free
        _tier.write(torch.arange(8), torch.zeros(8, 4))
        _tier.commit({})
    _tier.read(torch.arange(8), _layout.empty(8))
    _tier.close()
