"""Our cache on ranks, made wrong or made to fail, each in one way."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec import KeyedTensor

from systems.contract import Rows
from systems.sharded.collection import ShardedFreqCache
from systems.sharded.placement import Shard

PIDS = "RANK_PIDS"
"""Environment variable: a folder in which every rank leaves a file by its number."""


class OtherRanksVectors(ShardedFreqCache):
    """Every rank gets the pooled vectors of the next one."""

    def forward(self, features):
        found = super().forward(features)
        values = found.values().detach()
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        theirs = parts[(dist.get_rank() + 1) % dist.get_world_size()]
        return KeyedTensor(found.keys(), found.length_per_key(), found.values() + (theirs - values))


class LostUpdate(ShardedFreqCache):
    """The gradient of the last rank's last sample never leaves it."""

    def forward(self, features):
        found = super().forward(features)
        if found.values().requires_grad and dist.get_rank() == dist.get_world_size() - 1:
            factors = torch.ones(found.values().shape[0], 1)
            factors[-1] = 0
            found.values().register_hook(lambda gradient: gradient * factors)
        return found


class TwoOwners(ShardedFreqCache):
    """The second rank takes the first row of its range for one more of the first rank's."""

    @property
    def shards(self):
        mine = super().shards
        if dist.get_rank() == 0:
            return mine
        return [Shard(s.table, s.first - 1, s.rows) if s.first else s for s in mine]


class LosesState(ShardedFreqCache):
    """Optimizer state of the second rank's rows is not loaded."""

    def load_shard(self, shard, start, rows):
        super().load_shard(shard, start, rows if dist.get_rank() == 0 else Rows(rows.weights))


class _Tells(ShardedFreqCache):
    """Leaves its process id behind; the second rank fails in its third step."""

    def __init__(self, spec):
        super().__init__(spec)
        self._steps = 0
        if PIDS in os.environ:
            (Path(os.environ[PIDS]) / str(dist.get_rank())).write_text(str(os.getpid()))

    def forward(self, features):
        self._steps += 1
        if self._steps == 3 and dist.get_rank() == 1:
            self.fail()
        return super().forward(features)


class Dies(_Tells):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(_Tells):
    def fail(self):
        raise ValueError("no table today")


class Hangs(_Tells):
    def fail(self):
        time.sleep(600)
