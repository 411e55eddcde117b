"""Rows divided for good between the device and the host: which are hot, what they weigh, what is missed."""

import pytest
import torch

from systems.contract import Counters, MemoryUse, OptimizerKind, Rows, SystemSpec, Tier
from systems.hot_split import HotSplit, hot_rows
from systems.reference import ReferenceSystem
from tests.contract.scenes import assert_same, batch_of, snapshot, spec, table

A, B = table("a", 5, 4), table("b", 3, 4, "b1", "b2")
FREQUENCIES = {"a": [0, 7, 7, 100, 2], "b": [7, 50, 0]}
ADAGRAD = OptimizerKind.ADAGRAD


def setting(**choices: object) -> SystemSpec:
    return spec(A, B, device="cpu", frequencies=FREQUENCIES, **choices)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        # a share of the rows of all tables
        ({"ratio": 0.01}, {"a": [3], "b": []}),
        ({"ratio": 2 / 8}, {"a": [3], "b": [1]}),
        ({"ratio": 4 / 8}, {"a": [1, 2, 3], "b": [1]}),  # of three rows that were used 7 times the first two
        ({"ratio": 5 / 8}, {"a": [1, 2, 3], "b": [0, 1]}),
        ({"ratio": 1.0}, {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2]}),
        # as many as fit so many bytes, their state included
        ({"total_bytes": 16}, {"a": [3], "b": []}),
        ({"total_bytes": 47}, {"a": [3], "b": [1]}),
        ({"total_bytes": 48}, {"a": [1, 3], "b": [1]}),
        ({"total_bytes": 64}, {"a": [1, 2, 3], "b": [1]}),
        ({"total_bytes": 10_000}, {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2]}),
        ({"total_bytes": 64, "kind": ADAGRAD}, {"a": [3], "b": [1]}),
        ({"total_bytes": 63, "kind": ADAGRAD}, {"a": [3], "b": []}),
    ],
)
def test_most_frequent_rows_that_fit_are_hot(choices: dict[str, object], expected: dict[str, list[int]]) -> None:
    hot = hot_rows(setting(**choices))
    assert {name: rows.nonzero().flatten().tolist() for name, rows in hot.items()} == expected


def test_every_row_is_on_one_side_and_its_place_is_an_index_on_the_host() -> None:
    system = HotSplit(setting(ratio=4 / 8))
    assert system.memory() == {
        (Tier.DEVICE, MemoryUse.ROWS): 4 * 16,
        (Tier.HOST, MemoryUse.ROWS): 4 * 16,
        (Tier.HOST, MemoryUse.INDEX): 4 * 8,
    }
    assert system.slots == 4


def test_cold_rows_are_missed_and_none_is_moved() -> None:
    system = HotSplit(setting(ratio=4 / 8))
    seen = batch_of({"a": [[3, 4, 4], [0, 1]], "b1": [[0], [1]], "b2": [[2, 0], []]})
    system(seen)
    assert system.counters() == Counters(steps=0)
    system.count_traffic(True)
    system(seen)
    assert system.counters() == Counters(
        steps=1,
        lookups=9,
        unique_ids=4 + 3,
        unique_misses=2 + 2,
        lookup_misses=3 + 3,
        rows_fetched=0,
        rows_written_back=0,
        per_table={"a": (4, 2), "b": (3, 2)},
    )


@pytest.mark.parametrize(
    "order", [("all", "none", "some"), ("none", "some", "all"), ("some", "all", "none")], ids="-".join
)
def test_tables_wholly_on_one_side_train_beside_divided_ones(order: tuple[str, ...]) -> None:
    """fbgemm's CPU kernels must not take a table without rows on a side for a feature of its neighbour."""
    counts = {"all": [9, 9, 9], "none": [0, 0, 0, 0], "some": [9, 0, 9, 0, 0]}
    tables = [table(name, len(counts[name]), 8) for name in order]
    shared = spec(*tables, device="cpu", ratio=5 / 12, frequencies=counts)
    systems = HotSplit(shared), ReferenceSystem(shared)
    for system in systems:
        for one in tables:
            rows = torch.arange(one.num_embeddings * one.embedding_dim, dtype=torch.float32)
            system.load_rows(one.name, 0, Rows(rows.view(one.num_embeddings, -1)))
        for _ in range(2):
            system(batch_of({name: [[0], [1], [2]] for name in order})).values().square().sum().backward()
    assert_same(snapshot(systems[0]), snapshot(systems[1]))
