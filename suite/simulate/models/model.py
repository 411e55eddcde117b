"""Base class of simulated caches, which see batches one after another and count what they would have moved."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from suite.simulate.trace import Seen, Trace, replayed
from systems.contract import OptimizerKind, SparseOptimizer

Bools = NDArray[np.bool_]


@dataclass
class Tally:
    """Sums over the counted batches. Definitions are those of `systems.contract.Counters`.

    Attributes:
        details: What only some policies have, by name, such as conflict misses.
        over_time: Distinct rows and misses of each batch.
    """

    batches: int = 0
    lookups: int = 0
    unique_ids: int = 0
    unique_misses: int = 0
    lookup_misses: int = 0
    rows_fetched: int = 0
    rows_written_back: int = 0
    overflow_batches: int = 0
    details: Counter[str] = field(default_factory=Counter)
    over_time: list[tuple[int, int]] = field(default_factory=list)

    def count(self, batch: Seen, missed: Bools) -> None:
        """Count the rows of a batch. What moved, `lookup_misses` and `overflow_batches` are left to the caller.

        `missed`, bool `[u]`: whether each of its distinct rows, in any order, was absent.
        """
        misses = int(np.count_nonzero(missed))
        self.batches += 1
        self.lookups += batch.ids.values.size
        self.unique_ids += missed.size
        self.unique_misses += misses
        self.over_time.append((missed.size, misses))


@dataclass(frozen=True, kw_only=True)
class Span:
    """Batches 0 to `stop` of a trace are replayed, and counted from `counted_from` on."""

    counted_from: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Arguments of a simulated cache: what will be replayed, and the cached rows asked for."""

    trace: Trace
    span: Span
    slots: int


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """Size of one row: bytes of its weights, and the optimizer whose state belongs to it."""

    weights: int
    optimizer: SparseOptimizer
    dim: int


class CannotReplay(Exception):
    """A policy cannot run on a trace with so many slots; the message says why, as a line of a table does."""


class CacheModel(ABC):
    """One simulated way of caching. To write: `step`, where it looks ahead also `look_ahead` and `announce`.

    `__init__`, `announce` and `step` raise `CannotReplay` where the modelled system would refuse or fail.
    """

    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Allowed values by parameter name, the default first."""
    bypasses: ClassVar[bool] = False
    """A missing row may be used without taking a slot. Its bound is then `belady[bypass=on]`."""
    moves_state: ClassVar[bool] = True
    """A row's optimizer state moves with it."""
    state_by_batch: ClassVar[bool] = False
    """State has no cache: backward reads and writes it once for each distinct row, unless it is one number per row."""

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        self.setting = setting
        self.parameters = parameters

    @property
    def slots(self) -> int:
        """Rows that it can hold at a time."""
        return min(self.setting.slots, self.setting.trace.rows)

    @property
    def look_ahead(self) -> int:
        """Batches that are announced before one is stepped."""
        return 0

    def announce(self, batch: Seen) -> None:  # noqa: B027 - most policies do not look ahead
        """A coming batch."""

    @abstractmethod
    def step(self, batch: Seen, tally: Tally | None) -> None:
        """The batch announced longest ago takes its turn; it is counted if there is a tally."""

    def count(self, batch: Seen, missed: Bools, tally: Tally) -> int:
        """Count a batch by its distinct rows; what moved is left to the caller. Returns how many were absent.

        `missed`, bool `[u]`: whether each of its rows, as `Seen.unique` has them, was absent.
        """
        rows, occurrences = batch.unique
        tally.count(batch, missed)
        tally.lookup_misses += int(occurrences[missed].sum(dtype=np.int64))
        tally.overflow_batches += int(rows.size > self.slots)
        return int(np.count_nonzero(missed))

    def bytes_moved(self, tally: Tally, row: RowBytes) -> tuple[int, int]:
        """Bytes fetched and bytes written back."""
        state, rowwise = row.optimizer.state_bytes(row.dim), row.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
        each = row.weights + (state if self.moves_state and not self.state_by_batch else 0)
        apart = state * tally.unique_ids if self.state_by_batch and not rowwise else 0
        return tally.rows_fetched * each + apart, tally.rows_written_back * each + apart


class Replay:
    """A replay of a fresh model, which is handed the batches of its span in order.

    Attributes:
        tally: What was counted so far.
    """

    def __init__(self, model: CacheModel) -> None:
        self.model = model
        self.tally = Tally()
        self._waiting: deque[Seen] = deque()

    def take(self, batch: Seen) -> None:
        """Announce a batch; the one announced longest ago is stepped once the model has looked ahead as far as it does.

        Raises:
            CannotReplay: the modelled system would have refused or failed.
        """
        self.model.announce(batch)
        self._waiting.append(batch)
        if len(self._waiting) > self.model.look_ahead:
            self._step()

    def finish(self) -> Tally:
        """Step what waits behind the last batch. Raises as `take` does."""
        while self._waiting:
            self._step()
        return self.tally

    def _step(self) -> None:
        batch = self._waiting.popleft()
        counted = batch.number >= self.model.setting.span.counted_from
        self.model.step(batch, self.tally if counted else None)


def replay(model: CacheModel, *, on_batches: Callable[[int], None] = lambda _: None) -> Tally:
    """Replay the span that a model was made for.

    Args:
        model: A fresh one.
        on_batches: Told of so many more batches replayed, to show that something happens.

    Raises:
        CannotReplay: the modelled system would have refused or failed.
    """
    one = Replay(model)
    for batch in replayed(model.setting.trace, 0, model.setting.span.stop):
        one.take(batch)
        on_batches(1)
    return one.finish()
