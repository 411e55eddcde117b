"""Rows divided for good between the device and the host: which are hot, what they weigh, what is missed."""

from dataclasses import replace

import pytest
import torch

from systems.contract import Counters, MemoryUse, OptimizerKind, Rows, SystemSpec, Tier, Verdict
from systems.hot_split import HotSplit, hot_rows
from systems.reference import ReferenceSystem
from tests.contract.scenes import table
from tests.unit.systems.specs import batch, spec

A, B = table("a", 5, 4), table("b", 3, 8, "b1", "b2")
FREQUENCIES = {"a": torch.tensor([0, 7, 7, 100, 2]), "b": torch.tensor([7, 50, 0])}


def setting(*tables: object, **choices: object) -> SystemSpec:
    return replace(spec(*(tables or (A, B)), device="cpu", **choices), frequencies=FREQUENCIES)


def hot(**choices: object) -> dict[str, list[int]]:
    return {name: rows.nonzero().flatten().tolist() for name, rows in hot_rows(setting(**choices)).items()}


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.01, {"a": [3], "b": []}),
        (2 / 8, {"a": [3], "b": [1]}),
        (4 / 8, {"a": [1, 2, 3], "b": [1]}),  # of three rows that were used 7 times the first two
        (5 / 8, {"a": [1, 2, 3], "b": [0, 1]}),
        (1.0, {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2]}),
    ],
)
def test_ratio_takes_the_most_frequent_rows_over_all_tables(ratio: float, expected: dict[str, list[int]]) -> None:
    assert hot(ratio=ratio) == expected


@pytest.mark.parametrize(
    ("total_bytes", "expected"),
    [
        (32, {"a": [3], "b": []}),
        (48, {"a": [3], "b": [1]}),
        (79, {"a": [1, 3], "b": [1]}),
        (80, {"a": [1, 2, 3], "b": [1]}),
        (10_000, {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2]}),
    ],
)
def test_bytes_take_as_many_as_fit(total_bytes: int, expected: dict[str, list[int]]) -> None:
    assert hot(total_bytes=total_bytes) == expected


def test_optimizer_state_counts_against_the_bytes() -> None:
    assert hot(total_bytes=96, kind=OptimizerKind.ADAGRAD) == {"a": [3], "b": [1]}
    assert hot(total_bytes=95, kind=OptimizerKind.ADAGRAD) == {"a": [3], "b": []}


def test_budget_without_room_for_a_row_is_infeasible() -> None:
    answer = HotSplit.support(setting(total_bytes=31))
    assert answer.verdict is Verdict.INFEASIBLE
    assert "32 bytes" in answer.reason


def test_every_row_is_on_one_side_and_its_place_is_an_index_on_the_host() -> None:
    assert HotSplit(setting(ratio=4 / 8)).memory() == {
        (Tier.DEVICE, MemoryUse.ROWS): 3 * 16 + 1 * 32,
        (Tier.HOST, MemoryUse.ROWS): 2 * 16 + 2 * 32,
        (Tier.HOST, MemoryUse.INDEX): 4 * 8,
    }
    assert HotSplit(setting(ratio=4 / 8)).slots == 4


def test_cold_rows_are_missed_and_none_is_moved() -> None:
    system = HotSplit(setting(ratio=4 / 8))
    seen = batch({"a": [[3, 4, 4], [0, 1]], "b1": [[0], [1]], "b2": [[2, 0], []]})
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
    dims = {"all": 8, "none": 16, "some": 4}
    tables = [table(name, len(counts[name]), dims[name]) for name in order]
    shared = replace(
        spec(*tables, device="cpu", ratio=5 / 12), frequencies={name: torch.tensor(counts[name]) for name in order}
    )
    systems = HotSplit(shared), ReferenceSystem(shared)
    for system in systems:
        for one in tables:
            rows = torch.arange(one.num_embeddings * one.embedding_dim, dtype=torch.float32)
            system.load_rows(one.name, 0, Rows(rows.view(one.num_embeddings, -1)))
        bags = {one.name: [[i] for i in range(one.num_embeddings)][:3] for one in tables}
        for _ in range(2):
            system(batch(bags)).values().square().sum().backward()
    for one in tables:
        found, expected = (system.read_rows(one.name, torch.arange(one.num_embeddings)) for system in systems)
        assert torch.equal(found.weights, expected.weights)
