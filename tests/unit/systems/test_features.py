"""Cutting a batch into groups of features and joining what comes out."""

import pytest
import torch
from torchrec import KeyedJaggedTensor

from systems.features import FeatureGroups
from tests.contract.scenes import table
from tests.unit.systems.specs import batch

TABLES = (table("a", 5, 4, "a1", "a2"), table("b", 5, 8, mean=True), table("c", 5, 4))


def by_pooling() -> FeatureGroups:
    return FeatureGroups(TABLES, key=lambda t: t.pooling)


def test_tables_of_one_key_form_a_group_in_order_of_appearance() -> None:
    first, second = by_pooling().groups
    assert [t.name for t in first.tables] == ["a", "c"]
    assert first.features == ("a1", "a2", "c")
    assert first.table_of_feature == (0, 0, 1)
    assert first.dims == (4, 4, 4)
    assert second.features == ("b",)
    assert second.dims == (8,)


def test_split_puts_features_into_the_order_of_their_group() -> None:
    parts = by_pooling().split(batch({"c": [[1], []], "b": [[2], [3]], "a2": [[4], [0, 1]], "a1": [[], [2]]}))
    assert [part.keys() for part in parts] == [["a1", "a2", "c"], ["b"]]
    assert parts[0].values().tolist() == [2, 4, 0, 1, 1]
    assert parts[0].lengths().tolist() == [0, 1, 1, 2, 1, 0]
    assert parts[1].values().tolist() == [2, 3]


def test_features_in_order_and_the_output_of_a_single_group_are_passed_on_as_they_are() -> None:
    groups = FeatureGroups(TABLES, key=lambda t: None)
    features = batch({"a1": [[1]], "a2": [[1]], "b": [[1]], "c": [[1]]})
    assert groups.split(features)[0] is features
    output = torch.zeros(1, 20)
    assert groups.join([output]).values().data_ptr() == output.data_ptr()


def test_missing_features_are_named_with_those_present() -> None:
    with pytest.raises(ValueError, match="no feature a2, c; it has a1, b"):
        by_pooling().split(batch({"a1": [[1]], "b": [[1]]}))


def weighted_batch(weights: torch.Tensor | None) -> KeyedJaggedTensor:
    plain = batch({"c": [[1], []], "b": [[2], [3]], "a2": [[4], [0, 1]], "a1": [[], [2]]})
    return KeyedJaggedTensor(plain.keys(), plain.values(), weights, lengths=plain.lengths())


def test_weights_follow_their_ids_and_gradients_find_the_way_back() -> None:
    weights = torch.arange(7.0).requires_grad_()
    groups = FeatureGroups(TABLES, key=lambda t: t.pooling, weighted=True)
    first, second = groups.split(weighted_batch(weights))
    assert first.keys() == ["a1", "a2", "c"]
    assert first.values().tolist() == [2, 4, 0, 1, 1]
    assert first.lengths().tolist() == [0, 1, 1, 2, 1, 0]
    assert first.weights().tolist() == [6, 3, 4, 5, 0]
    assert second.weights().tolist() == [1, 2]
    (first.weights() * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [5, 0, 0, 2, 3, 4, 1]


def test_weights_come_if_and_only_if_they_were_announced() -> None:
    with pytest.raises(ValueError, match=r"has no per-sample weights.*weighted=False"):
        FeatureGroups(TABLES, key=lambda t: t.pooling, weighted=True).split(weighted_batch(None))
    with pytest.raises(ValueError, match=r"has per-sample weights.*weighted=True"):
        by_pooling().split(weighted_batch(torch.ones(7)))


def test_joined_outputs_stand_in_table_order_whatever_the_groups() -> None:
    sums = torch.tensor([[1.0] * 4 + [2.0] * 4 + [4.0] * 4])
    means = torch.tensor([[3.0] * 8])
    joined = by_pooling().join([sums, means])
    assert joined.keys() == ["a1", "a2", "b", "c"]
    assert joined.length_per_key() == [4, 4, 8, 4]
    assert joined.values().tolist() == [[1.0] * 4 + [2.0] * 4 + [3.0] * 8 + [4.0] * 4]
