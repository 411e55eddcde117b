"""A collection trains as plain torch does: policies, mixed tables, weights, schedules, evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import StepLR

from systems.freq_cache import LFU, LRU
from tests.contract.scenes import assert_same, snapshot
from tests.unit.systems.freq_cache.collection_training import (
    ADAGRAD,
    SGD,
    WITH_ODD_ONES,
    Plain,
    batch,
    built,
    frequencies,
    learn,
    train,
)


@pytest.mark.parametrize("policy", ["static", "lfu", "lru", lambda rows: LRU(), LFU])
@pytest.mark.parametrize("look_ahead", [0, 3])
def test_every_policy_trains_as_plain_torch_does(policy: Any, look_ahead: int) -> None:
    collection = built(policy=policy, look_ahead=look_ahead, frequencies=frequencies())
    plain = Plain(collection)
    train(collection, range(8))
    plain.train(range(8))
    assert_same(snapshot(collection), plain.rows())
    assert collection.counters().rows_written_back > 0


def test_policy_of_ones_own_is_made_for_the_rows_of_each_cache() -> None:
    asked: list[int] = []
    built(policy=lambda rows: asked.append(rows) or LRU())
    assert asked == [260, 40]


@pytest.mark.parametrize("on_disk", [False, True])
def test_widths_poolings_and_row_types_mix(on_disk: bool, tmp_path: Path) -> None:
    directory = tmp_path if on_disk else None
    collection = built(WITH_ODD_ONES, optimizer=ADAGRAD, look_ahead=2, directory=directory)
    plain = Plain(collection)
    for step in range(4):
        train(collection, range(step, step + 1))
        plain.train(range(step, step + 1))
    found, wanted = snapshot(collection), plain.rows()
    half = {name for name in found if name.startswith("tags.w")}
    assert_same({n: found[n] for n in found.keys() - half}, {n: wanted[n] for n in wanted.keys() - half}, within=1e-4)
    assert_same({n: found[n] for n in half}, {n: wanted[n] for n in half}, within=2e-2)


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_weighted_batches_train_as_plain_torch_does(look_ahead: int) -> None:
    collection = built(is_weighted=True, look_ahead=look_ahead)
    plain = Plain(collection)
    assert collection.is_weighted()
    train(collection, range(6))
    plain.train(range(6), weighted=True)
    assert_same(snapshot(collection), plain.rows())


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_schedule_of_torch_trains_as_plain_torch_at_the_same_rates(look_ahead: int) -> None:
    collection = built(look_ahead=look_ahead)
    plain = Plain(collection)
    schedule = StepLR(collection.fused_optimizer, step_size=2, gamma=0.5)
    batches = [batch(step) for step in range(8)]
    rates = []
    for step, features in enumerate(batches):
        coming = batches[: 1 + look_ahead] if not step else batches[step + look_ahead :][:1]
        for ahead in coming if look_ahead else []:
            collection.prefetch(ahead)
        learn(collection(features).values(), step)
        rates.append(schedule.get_last_lr()[0])
        plain.optimizer = replace(SGD, lr=rates[-1])
        plain.train(range(step, step + 1))
        collection.fused_optimizer.step()
        schedule.step()
    assert rates == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625]
    assert_same(snapshot(collection), plain.rows())


def test_rate_set_between_announcement_and_lookup_holds_for_that_lookup() -> None:
    collection = built(look_ahead=3)
    plain = Plain(collection)
    batches = [batch(step) for step in range(4)]
    for features in batches:
        collection.prefetch(features)
    for step, (features, lr) in enumerate(zip(batches, [0.5, 0.25, 1.0, 0.125], strict=True)):
        collection.fused_optimizer.param_groups[0]["lr"] = lr
        learn(collection(features).values(), step)
        plain.optimizer = replace(SGD, lr=lr)
        plain.train(range(step, step + 1))
    assert_same(snapshot(collection), plain.rows())


def test_state_of_the_fused_optimizer_carries_its_hyper_parameters() -> None:
    first, second = built(), built()
    first.set_learning_rate(0.125)
    saved = first.fused_optimizer.state_dict()
    assert saved["param_groups"][0]["lr"] == 0.125
    second.fused_optimizer.load_state_dict(saved)
    plain = Plain(second)
    plain.optimizer = replace(SGD, lr=0.125)
    train(second, range(2))
    plain.train(range(2))
    assert_same(snapshot(second), plain.rows())
