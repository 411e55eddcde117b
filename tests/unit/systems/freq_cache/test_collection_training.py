"""A collection trains as plain torch does: policies, mixed tables, weights, schedules, evaluation."""

from dataclasses import replace

import pytest
from torch.optim.lr_scheduler import StepLR

from systems.freq_cache import LRU
from tests.contract.scenes import assert_same, snapshot
from tests.unit.systems.freq_cache.collection_training import SGD, Plain, batch, built, learn, train


def test_policy_of_ones_own_is_made_for_the_rows_of_each_cache() -> None:
    asked: list[int] = []
    built(policy=lambda rows: asked.append(rows) or LRU())
    assert asked == [260, 40]


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
