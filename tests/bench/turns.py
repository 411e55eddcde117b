"""Rounds of ours in turns with those of what they are measured against.

A time says little away from its machine. So each benchmark of ours names another side, and before each of its own
rounds that side has one on the same clock: the ratio of such a pair sees one machine in one state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a benchmark.

    Attributes:
        name: That of the test that measures it, with its parameters; of the other side, what limits call it.
        unit, units: What a round works through, and how many of it.
        prepare: Makes the arguments of a round, outside the clock; whatever a cache could remember is fresh.
        run: What the clock sees.
        threads: Of the pool that computes.
        device: Type of the device that computes.
    """

    name: str
    unit: str
    units: int
    prepare: Callable[[], Sequence[Any]]
    run: Callable[..., Any]
    threads: int = field(default_factory=torch.get_num_threads)
    device: str = "cpu"


class Turns:
    """Measures one side, in turns with another."""

    def __init__(self, benchmark: BenchmarkFixture, environment: Mapping[str, Any], clock: Callable[[], float]) -> None:
        self._benchmark = benchmark
        self._environment = environment
        self._clock = clock

    def measure(self, side: Side, *, rounds: int, warmup_rounds: int = 1, beside: Side | None = None) -> Any:
        """Run the rounds of a side; with benchmarks disabled, one.

        Args:
            side: What is measured.
            rounds: Of each side.
            warmup_rounds: Rounds of each side before these, not measured.
            beside: Has a round before each one of `side`. Ours need one.

        Returns:
            The answer of the last round, and with `beside` that of its last round too.
        """
        assert side.name == self._benchmark.name, f"{self._benchmark.name} measures {side.name}"
        seconds: list[float] = []
        answers: list[Any] = []

        def prepare() -> tuple[tuple[Any, ...], dict[str, Any]]:
            if beside is not None:
                arguments = beside.prepare()
                start = self._clock()
                answer = beside.run(*arguments)
                seconds.append(self._clock() - start)
                answers[:] = [answer]
            return tuple(side.prepare()), {}

        load = os.getloadavg()[0]
        answer = self._benchmark.pedantic(
            side.run, setup=prepare, rounds=rounds, warmup_rounds=warmup_rounds, iterations=1
        )
        self._benchmark.extra_info.update(
            unit=side.unit,
            units=side.units,
            threads=side.threads,
            device=side.device,
            clock=f"{self._clock.__module__}.{self._clock.__name__}",
            load_average=round(load, 2),
            environment=dict(self._environment),
        )
        if beside is None:
            return answer
        self._benchmark.extra_info["beside"] = {"name": beside.name, "seconds": seconds[warmup_rounds:][:rounds]}
        return answer, answers[0]


class Gather:
    """As many random int32 as a batch has ids, out of a table of so many rows: what no plan can do without."""

    def __init__(self, *, rows: int, ids: int) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._table = torch.randint(1 << 30, (rows,), dtype=torch.int32, generator=self._generator)
        self._ids = ids

    def side(self, name: str) -> Side:
        return Side(
            name=name,
            unit="ids",
            units=self._ids,
            prepare=self._prepare,
            run=lambda numbers: torch.index_select(self._table, 0, numbers),
        )

    def _prepare(self) -> tuple[Tensor]:
        self._last = torch.randint(self._table.numel(), (self._ids,), generator=self._generator)
        return (self._last,)

    def check(self, gathered: Tensor) -> None:
        """Assert that this is the answer of the last round."""
        assert np.array_equal(gathered.numpy(), self._table.numpy()[self._last.numpy()])
