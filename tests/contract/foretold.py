"""What a collection's counters must say, foretold by brute force: a planner of lists and sets for every cache."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from brute_force_planner import BruteForcePlan, BruteForcePlanner, ByFrequency, ByRecency, ByUse
from hypothesis import strategies as st
from scenes import table
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import Support, SystemSpec
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.batches import known_behind

TABLES = (
    table("users", 13, 8, "clicked", "bought"),
    table("colours", 5, 4),
    table("words", 11, 8, mean=True),
    table("shops", 9, 8),
)
"""Three caches, two widths: users and shops share one."""


class AnywherePinned(CachedEmbeddingBagCollection):
    """On a CPU, which it refuses, pinned rows go the way that they go on a GPU: through staging."""

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        return Support()


@dataclass(frozen=True)
class Choices:
    """How a collection is built; whatever is chosen here must not be seen in what it trains."""

    policy: str
    look_ahead: int
    ratio: float
    own_rows: int | None
    tier: str
    ram_bytes: int
    batch_lookups: int
    free_core: bool


CHOICES = st.builds(
    Choices,
    policy=st.sampled_from(["static", "lfu", "lru"]),
    look_ahead=st.sampled_from([0, 1, 2, 4, 8]),
    ratio=st.sampled_from([0.001, 0.1, 0.3, 0.5, 0.7, 1.0]),
    own_rows=st.sampled_from([None, 1, 6]),
    tier=st.sampled_from(["host", "pinned", "file"]),
    ram_bytes=st.sampled_from([0, 1, 800, 8000]),
    batch_lookups=st.sampled_from([1, 16, 512]),
    free_core=st.booleans(),
)


@dataclass
class Coming:
    """A batch on its way through the brute-force pipeline."""

    batch: KeyedJaggedTensor
    changes: bool
    entered: bool = False
    plans: list[BruteForcePlan] | None = None


@dataclass
class Foretold:
    """What the counters of a collection must say, and what it takes to know it."""

    tables: tuple[EmbeddingBagConfig, ...]
    choices: Choices
    frequencies: dict[str, list[int]]
    coming: list[Coming] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_table: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[object, list[EmbeddingBagConfig]] = {}
        for t in self.tables:
            own = t.name == "shops" and self.choices.own_rows is not None
            groups.setdefault((own, t.embedding_dim, t.pooling, t.data_type), []).append(t)
        self.groups = list(groups.values())
        self.planners = [self._planner(group) for group in self.groups]
        self.passing = [0] * len(self.groups)  # trained rows without a slot that have yet to go home
        self.warm = False

    def _planner(self, group: list[EmbeddingBagConfig]) -> BruteForcePlanner:
        rows = sum(t.num_embeddings for t in group)
        own = self.choices.own_rows if group[0].name == "shops" else None
        ranking = {
            "static": lambda: ByFrequency([count for t in group for count in self.frequencies[t.name]]),
            "lfu": ByUse,
            "lru": ByRecency,
        }[self.choices.policy]()
        return BruteForcePlanner(rows=rows, slots=own or max(1, int(rows * self.choices.ratio)), ranking=ranking)

    def announce(self, batch: KeyedJaggedTensor, *, changes: bool) -> None:
        self._warm_up()
        self.coming.append(Coming(batch, changes))
        self._enter_all()
        known = len(self.coming) - known_behind(self.choices.look_ahead)  # so many have enough others behind them
        for coming in self.coming[: max(known, 0)]:
            if coming.plans is None:
                coming.plans = [planner.plan() for planner in self.planners]

    def look_up(self, batch: KeyedJaggedTensor, *, changes: bool) -> None:
        self._warm_up()
        self._go_home()
        if self.coming and self._is_again(batch, self.coming[0], changes=changes):
            self._enter_all()
            now = self.coming.pop(0)
        else:
            self.finish()
            now = Coming(batch, changes)
            self._enter(now)
        plans = now.plans or [planner.plan() for planner in self.planners]
        self._move(plans)
        overflows = 0
        for at, plan in enumerate(plans):
            self.counts["lookups"] += len(plan.inverse)
            self.counts["unique_ids"] += len(plan.rows)
            self.counts["unique_misses"] += sum(plan.missed)
            self.counts["lookup_misses"] += sum(plan.missed[i] for i in plan.inverse)
            self.counts[f"overflow of {at}"] += plan.overflow
            self._count_by_table(self.groups[at], plan)
            if plan.overflow:
                self.counts["rows_fetched"] += plan.slots.count(-1)
                self.passing[at] = plan.slots.count(-1) if changes else 0
            overflows = max(overflows, self.counts[f"overflow of {at}"])
        self.counts["steps"] += 1
        self.counts["overflow_batches"] = overflows

    def _is_again(self, batch: KeyedJaggedTensor, coming: Coming, *, changes: bool) -> bool:
        """Whether a batch is the one announced: the object itself, or another with the same ids."""
        if coming.batch is batch:
            return True
        ours, theirs = batch.to_dict(), coming.batch.to_dict()
        names = [name for t in self.tables for name in t.feature_names]
        return changes <= coming.changes and all(
            ours[name].values().tolist() == theirs[name].values().tolist()
            and ours[name].lengths().tolist() == theirs[name].lengths().tolist()
            for name in names
        )

    def finish(self) -> None:
        """What was planned is moved, and all that is announced will be planned anew."""
        self._go_home()
        for coming in self.coming:
            if coming.plans is not None:
                self._move(coming.plans)
            coming.entered, coming.plans = False, None
        for planner in self.planners:
            planner.withdraw()

    def flush(self) -> None:
        self.finish()
        for planner in self.planners:
            planner.written(planner.changed()[1])

    def load(self, name: str, start: int, count: int) -> None:
        self.finish()
        for group, planner in zip(self.groups, self.planners, strict=True):
            if name in [t.name for t in group]:
                first = start + first_row(group, name)
                planner.written(planner.held(first, first + count)[1])

    def _warm_up(self) -> None:
        for planner in self.planners:
            if not self.warm:
                self.counts["warm"] += len(planner.warm_up()[0])
        self.warm = True

    def _enter_all(self) -> None:
        for coming in self.coming:
            if not coming.entered:
                self._enter(coming)

    def _enter(self, coming: Coming) -> None:
        coming.entered = True
        parts = coming.batch.to_dict()
        for group, planner in zip(self.groups, self.planners, strict=True):
            ids = [
                first_row(group, t.name) + i
                for t in group
                for feature in t.feature_names
                for i in parts[feature].values().tolist()
            ]
            planner.announce(ids, changes=coming.changes)

    def _move(self, plans: Sequence[BruteForcePlan]) -> None:
        for plan in plans:
            self.counts["rows_fetched"] += len(plan.fetch_rows)
            self.counts["rows_written_back"] += len(plan.back_rows)

    def _go_home(self) -> None:
        self.counts["rows_written_back"] += sum(self.passing)
        self.passing = [0] * len(self.groups)

    def _count_by_table(self, group: list[EmbeddingBagConfig], plan: BruteForcePlan) -> None:
        for t in group:
            first = first_row(group, t.name)
            own = [missed for row, missed in zip(plan.rows, plan.missed, strict=True) if 0 <= row - first < rows_of(t)]
            seen, missed = self.by_table.get(t.name, (0, 0))
            self.by_table[t.name] = (seen + len(own), missed + sum(own))


def rows_of(t: EmbeddingBagConfig) -> int:
    return int(t.num_embeddings)


def first_row(group: list[EmbeddingBagConfig], name: str) -> int:
    """Where a table starts in the rows of its cache."""
    names = [t.name for t in group]
    return sum(rows_of(t) for t in group[: names.index(name)])


def drawn(tables: tuple[EmbeddingBagConfig, ...], seed: int, *, weighted: bool) -> KeyedJaggedTensor:
    """Two bags for every feature, of as many ids as a mean divides exactly, small ids more often; some are empty."""
    draw = random.Random(seed)
    longest = draw.choice([0, 1, 1, 2, 4])
    lengths, ids = [], []
    features = [(name, t) for t in tables for name in t.feature_names]
    draw.shuffle(features)
    for _, t in features:
        for _ in range(2):
            length = draw.choice([0, longest // 2, longest])
            lengths.append(length)
            ids += [int(rows_of(t) * draw.random() ** 2) for _ in range(length)]
    weights = torch.tensor([draw.choice([-1.0, 0.0, 0.5, 2.0]) for _ in ids]) if weighted else None
    names = [name for name, _ in features]
    return KeyedJaggedTensor(names, torch.tensor(ids, dtype=torch.int64), weights, lengths=torch.tensor(lengths))


def whole(shape: Sequence[int], seed: int, most: int = 2) -> Tensor:
    """Small whole numbers."""
    return torch.randint(-most, most + 1, tuple(shape), generator=torch.Generator().manual_seed(seed)).float()
