"""Making a batch of a synthetic stream at its published size, beside numpy's generator drawing as many uniforms."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from turns import Side, Turns

from workloads.batch import Batch, Split
from workloads.streams.synthetic import SyntheticWorkload

WORKLOADS = ("criteo_kaggle", "avazu", "criteo_1tb", "mlperf_dlrm_v2", "criteo_1tb@drift")
SAMPLES = {True: 16_384, False: 64}
ROUNDS = 20
SEED = 0


class Made:
    """A stream, whose batches are made from all over the training split."""

    def __init__(self, name: str, *, samples: int) -> None:
        self.workload = SyntheticWorkload.create(name, batch_size=samples, seed=SEED)
        self._indices = spread(self.workload.batches(Split.TRAIN))
        self.ids = self.workload.batch(next(self._indices)).features.values().numel()
        self.words = random_words(self.workload)

    def prepare(self) -> tuple[int]:
        self.last = next(self._indices)
        return (self.last,)

    def run(self, index: int) -> Batch:
        return self.workload.batch(index)

    def side(self, name: str) -> Side:
        # the loops that make a batch run on one thread
        return Side(
            name=f"test_batch[{name}]",
            unit="words",
            units=self.words,
            prepare=self.prepare,
            run=self.run,
            threads=1,
        )


def random_words(workload: SyntheticWorkload) -> int:
    """Random words that a batch takes; Philox makes four per step of its counter."""
    made: list[np.random.Philox] = []

    def generator(*arguments: int) -> np.random.Philox:
        made.append(SyntheticWorkload.generator(workload, *arguments))
        return made[-1]

    with patch.object(workload, "generator", generator):
        workload.batch(0)
    return 4 * int(made[-1].state["state"]["counter"][0])


def spread(count: int) -> Iterator[int]:
    """Indices below a count, none of them twice."""
    return iter(np.random.default_rng(SEED).choice(count, 2 + 2 * ROUNDS, replace=False).tolist())


def drawn(name: str, words: int) -> Side:
    """As many uniforms as a batch takes, from the generator that it takes them from."""
    generator = np.random.Generator(np.random.Philox(key=1))
    return Side(
        name=f"test_uniforms[{name}]",
        unit="words",
        units=words,
        prepare=tuple,
        run=lambda: generator.random(words),
        threads=1,
    )


def assert_uniform(found: npt.NDArray[np.float64], words: int) -> None:
    assert found.shape == (words,)
    assert found.min() >= 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 6 / np.sqrt(12 * words)  # six standard deviations


def test_words_are_all_that_a_batch_draws() -> None:
    tables, groups, label, dense = 13, 1, 1, 8
    assert Made("avazu", samples=64).words == 64 * (tables + groups + label + dense)


@pytest.mark.benchmark(group="generator")
@pytest.mark.parametrize("name", WORKLOADS)
def test_batch(turns: Turns, full_size: bool, name: str) -> None:
    made = Made(name, samples=SAMPLES[full_size])
    batch, uniforms = turns.measure(made.side(name), beside=drawn(name, made.words), rounds=ROUNDS)
    assert_uniform(uniforms, made.words)
    again = made.workload.batch(made.last)
    assert batch.features.values().equal(again.features.values())
    assert batch.dense.equal(again.dense)
    for table, rows in made.workload.tables:
        ids = batch.features[table].values()
        assert ids.min() >= 0
        assert ids.max() < rows
