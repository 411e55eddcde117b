"""FAE (arXiv 2103.00686): a fixed hot set."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Int32s, Seen, Trace


class HotSetModel(CacheModel):
    """FAE: the most frequent rows sit on the device from the start, and no other row ever does.

    The hot set has as many rows as there are slots, those of the highest frequencies; of equals the lower rows. Cold
    rows stay with the host, which reads them for the lookup and updates them itself: each distinct cold row of a batch
    is a miss, counted as fetched once (its weights, or what pooling makes of them) and written back once (a gradient of
    the same size); its optimizer state does not move. The batches are taken as they come: FAE's sorting of samples into
    hot and mixed batches, and bringing the hot rows of host and device in line where the two alternate, are left out.

    Memory: 1 B per row, none per slot, and for ranks 4 B per row, while they are made 28 B.
    """

    bypasses = True
    moves_state = False

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._cold = ranks(setting.trace) >= setting.slots

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if tally is None:
            return
        misses = self.count(batch, self._cold[batch.unique[0]], tally)
        tally.rows_fetched += misses
        tally.rows_written_back += misses


@lru_cache(maxsize=1)  # the same at every size of a cache
def ranks(trace: Trace) -> Int32s:
    """The place of every row by falling frequency, from 0 on, int32 `[rows]`; of equals the lower row comes first."""
    found = np.empty(trace.rows, np.int32)
    found[np.argsort(-np.concatenate(trace.frequencies()), kind="stable")] = np.arange(trace.rows, dtype=np.int32)
    return found
