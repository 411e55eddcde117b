"""Cells replayed in one pass or in several: the same counters, every cell accounted for."""

import pytest

from suite.simulate import command
from suite.simulate.models.model import RowBytes, Span
from suite.simulate.models.registry import MODELS
from suite.simulate.options import open_trace
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import read_variant

ROW = RowBytes(weights=16, optimizer=SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.0), dim=4)
SPAN = Span(counted_from=2, stop=6)
POLICIES = ("freq_cache[policy=static]", "freq_cache[policy=lru,look_ahead=4]", "uvm", "belady", "fae", "lru")


def test_counters_are_the_same_in_one_pass_and_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [read_variant(policy, known=list(MODELS), what="policy") for policy in POLICIES]
    cells = [command.SimulatedCell(policy=policy, slots=300) for policy in named]
    trace = open_trace(workload="avazu", scale="smoke", batch_size=64)
    found, told = [], []
    for memory_bytes in (command.MEMORY_BYTES, 50 * trace.rows, 1):  # all cells at once, two, one
        monkeypatch.setattr(command, "MEMORY_BYTES", memory_bytes)
        outcomes = command.run_cells(cells, trace=trace, span=SPAN, row=ROW, shown=lambda *said: told.append(said[1]))
        found.append({str(cell.policy): outcome.traffic for cell, outcome in outcomes})
        assert told == sorted(told)
        assert told[-1] == len(cells) * SPAN.stop
        told.clear()
    assert found[0] == found[1] == found[2]
    assert tuple(found[0]) == POLICIES
    traffic = found[0]["uvm"]
    assert traffic.batches == 4
    assert traffic.bytes_fetched == 16 * traffic.rows_fetched + 16 * traffic.unique_ids
    assert traffic.bytes_written_back == 32 * traffic.rows_written_back
