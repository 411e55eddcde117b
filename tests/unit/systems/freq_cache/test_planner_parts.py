"""Large batches are shared out to threads, and planned as if they were not."""

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from brute_force_planner import Ranking
from planner_traces import POLICIES, Both, TheirOwn, TheirOwnRanking, same_policies

from systems.freq_cache import threads as sharing
from systems.freq_cache.planner import announce_loops
from systems.freq_cache.planner import planner as planner_module
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from systems.freq_cache.planner.policy import LFU, Policy


@pytest.mark.parametrize("name", [*POLICIES, "one's own", "one's own, fixed"])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "last part first"])
def test_batch_in_parts_is_planned_as_a_whole_one(name: str, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are worked on at the same time, so they must not care which of them is done first."""

    def in_parts(work: Callable[[int], None], parts: int) -> None:
        for part in range(parts)[::order]:
            work(part)

    monkeypatch.setattr(planner_module, "in_parts", in_parts)
    monkeypatch.setattr(planner_module, "_PART_IDS", 1)
    monkeypatch.setattr(sharing, "cores", lambda: 4)
    draw = random.Random(7)
    starts = [20 * (feature // 2) for feature in range(12)]  # two features to a table
    policy: tuple[Policy, Ranking]
    if name in POLICIES:
        policy = same_policies(name, [draw.randrange(9) for _ in range(120)])
    else:
        policy = TheirOwn(1), TheirOwnRanking(1)
        policy[0].fixed = policy[1].fixed = name.endswith("fixed")
        assert not policy[0].divisible
    both = Both(rows=120, slots=90, policy=policy, starts=starts)
    for number in range(90):
        both.announce([[draw.randrange(20) for _ in range(draw.choice([0, 1, 4, 12]))] for _ in starts])
        if number % 30 == 29:
            both.withdraw()
        elif number % 30 >= 3:
            both.plan()


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_batches_are_shared_out_by_ids_and_not_within_a_table(most: int) -> None:
    draw = random.Random(most)
    for _ in range(300):
        tables = [draw.choice([1, 1, 2]) for _ in range(draw.choice([1, 3, 10]))]
        starts = np.array([100 * table for table, features in enumerate(tables) for _ in range(features)])
        lengths = [draw.choice([0, 1, 5, 40]) for _ in starts]
        begins, edges = np.empty(len(starts) + 1, np.int64), np.empty(most + 1, np.int64)
        parts = announce_loops.divide(np.cumsum(lengths), starts, begins, edges)
        assert begins.tolist() == [0, *np.cumsum(lengths).tolist()]
        shares = [slice(*edge) for edge in pairwise(edges[: parts + 1].tolist())]
        assert parts <= most
        assert [feature for share in shares for feature in range(len(starts))[share]] == list(range(len(starts)))
        used = [set(starts[share].tolist()) for share in shares]
        assert all(used)
        assert sum(map(len, used)) == len(tables)
        by_table = [int(np.sum(np.array(lengths)[starts == start])) for start in np.unique(starts)]
        assert max(sum(lengths[share]) for share in shares) <= sum(lengths) / most + 2 * max(by_table)


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_large_batches_are_planned_alike_on_any_number_of_threads(
    look_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads that really run at the same time."""
    generator, sizes = np.random.default_rng(0), [90_000, 5, 150_000, 400, 60_000, 200_000]
    starts, ends = np.cumsum(sizes) - sizes, 70_000 * np.arange(1, len(sizes) + 1)
    batches = [
        Ids(np.concatenate([size * generator.random(70_000) ** 3 for size in sizes]).astype(np.int64), ends, starts)
        for _ in range(10)
    ]

    def plans(threads: int) -> list[Plan]:
        monkeypatch.setattr(sharing, "cores", lambda: threads)
        planner, made = Planner(rows=sum(sizes), slots=200_000, policy=LFU(sum(sizes))), []
        for batch in batches:
            planner.announce(planner.distinct(batch), changes=True)
            if planner.announced > look_ahead:
                made.append(planner.plan())
        return made

    alone = plans(1)
    assert batches[0].values.size > 3 * planner_module._PART_IDS
    assert min(plan.unique_misses for plan in alone) > 20_000
    assert alone[-1].back_rows.size
    for threads in (2, 3):
        for one, other in zip(alone, plans(threads), strict=True):
            for name in (
                "rows",
                "slots",
                "missed",
                "inverse",
                "slot_of_id",
                "fetch_rows",
                "fetch_slots",
                "fetch_after",
                "back_rows",
                "back_slots",
            ):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert one.lookup_misses == other.lookup_misses
