"""Rows kept in fp16 or int8 in the cache's slow tier: how far off they are, that none drifts, what they weigh."""

from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scenes import (
    TABLES,
    UNIFORM,
    assert_same,
    build,
    evaluate,
    ragged,
    snapshot,
    spec_of,
    table,
    train,
    verification_of,
)
from torch import Tensor

from systems.contract import (
    CacheRatio,
    HostBytes,
    MemoryUse,
    OptimizerKind,
    Rows,
    SparseOptimizer,
    SystemSpec,
    Tier,
    Verdict,
)
from systems.freq_cache import CachedEmbeddingBagCollection, FreqCache
from systems.freq_cache.tiers.ram_index import RamIndex
from systems.freq_cache.tiers.slow_tier import RowLayout, decode_int8, encode_int8

CPU = torch.device("cpu")
KEPT = ("fp16", "int8")
RECORD_BYTES = {"fp32": 32 * 4, "fp16": 32 * 2, "int8": 32 + 8}
"""Of a row of width 32, without optimizer state."""
ADAGRAD = SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.1)

rows_of_floats = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.sampled_from([4, 8, 20])),
    elements=st.floats(-(2.0**80), 2.0**80, width=32),
)


def allowed(rows: Tensor) -> Tensor:
    """What `encode_int8` promises of int8, fp64 `[n, dim]`."""
    exact = rows.double()
    span = exact.amax(1, keepdim=True) - exact.amin(1, keepdim=True)
    return span / 505 + 2.0**-24 * exact.abs().maximum(decode_int8(encode_int8(rows)).double().abs()) + 1e-17


@given(rows_of_floats)
def test_an_element_of_an_int8_row_comes_back_within_the_stated_error_and_then_stays(values):
    rows = torch.from_numpy(values)
    back = decode_int8(encode_int8(rows))
    assert ((back.double() - rows.double()).abs() <= allowed(rows)).all()
    assert torch.equal(decode_int8(encode_int8(back)), back)


def test_an_int8_row_with_what_is_no_number_comes_back_as_none():
    for bad in (torch.nan, torch.inf, -torch.inf, 1e30):
        rows = torch.tensor([[1.0, 2.0, bad, -bad], [1.0, 2.0, 3.0, 4.0]])
        assert decode_int8(encode_int8(rows)).isnan().tolist() == [[True] * 4, [False] * 4]


@given(rows_of_floats)
def test_fp16_rounds_elements_to_nearest_and_shows_what_is_beyond_its_range(values):
    rows = torch.from_numpy(values).clamp(-65_504, 65_504)
    layout = RowLayout(rows.shape[1], torch.float16, {})
    back = layout.unpack(layout.pack(Rows(rows, {}))).weights
    assert ((back - rows).abs() <= rows.abs() * 2.0**-11 + 2.0**-25).all()
    assert torch.equal(layout.unpack(layout.pack(Rows(back, {}))).weights, back)
    beyond = torch.tensor([70_000.0, -torch.inf, torch.nan, 1.0]).repeat(1, rows.shape[1] // 4)
    shown = layout.unpack(layout.pack(Rows(beyond, {}))).weights
    assert shown[0, :2].isinf().all()
    assert shown[0, 2].isnan()


def collection(slow_rows: str, **choices: object) -> CachedEmbeddingBagCollection:
    given = {"optimizer": ADAGRAD, "cache_ratio": 0.3, "batch_lookups": 512, "slow_rows": slow_rows, **choices}
    return CachedEmbeddingBagCollection(given.pop("tables", TABLES), **given)


@pytest.mark.parametrize("ratio", [0.6, 0.1])
@pytest.mark.parametrize("slow_rows", KEPT)
def test_training_stays_within_a_way_per_step_of_plain_training_and_state_is_exact(slow_rows, ratio):
    """Gradients here do not follow from the rows, so what a row is off by adds up and no more."""
    kind, steps = OptimizerKind.ROWWISE_ADAGRAD, 20
    plain = build("reference", device=CPU, tables=UNIFORM, kind=kind)
    variant, budget = f"freq_cache[slow_rows={slow_rows}]", CacheRatio(ratio=ratio)
    cached = build(variant, device=CPU, tables=UNIFORM, kind=kind, budget=budget)
    assert not cached.exact
    for name, t in plain.tables.items():
        rows = Rows(torch.randn(t.num_embeddings, t.embedding_dim, generator=torch.Generator().manual_seed(1)))
        for system in (plain, cached):
            system.load_rows(name, 0, rows)
    for step in range(steps):
        for system in (plain, cached):
            train(system, ragged(step, UNIFORM, batch=4, longest=3), step)
    assert cached.counters().rows_written_back > 0
    assert (cached.counters().overflow_batches > 0) == (ratio == 0.1)
    ours, theirs = snapshot(cached), snapshot(plain)
    largest = 0.5 + max(float(rows.abs().max()) for rows in theirs.values())
    for name, value in ours.items():
        if name.endswith(".weight"):
            off = float((value - theirs[name]).abs().max())
            assert 0 < off <= (steps + 2) * cached.row_error * largest, name
        else:
            torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("slow_rows", ["fp32", *KEPT])
def test_bytes_on_host_and_link_are_those_of_the_compressed_record(slow_rows):
    tables = (table("t", 1000, 32),)
    variant = f"freq_cache[slow_rows={slow_rows}]"
    cached = build(variant, device=CPU, tables=tables, kind=OptimizerKind.ROWWISE_ADAGRAD)
    for step in range(8):
        train(cached, ragged(step, tables, batch=64), step)
    counters, memory, record = cached.counters(), cached.memory(), RECORD_BYTES[slow_rows] + 4
    assert counters.rows_written_back > 0
    assert counters.bytes_fetched == counters.rows_fetched * record
    assert counters.bytes_written_back == counters.rows_written_back * record
    assert memory[Tier.HOST, MemoryUse.ROWS] == 1000 * RECORD_BYTES[slow_rows]
    assert memory[Tier.HOST, MemoryUse.STATE] == 1000 * 4
    assert memory[Tier.DEVICE, MemoryUse.ROWS] == 400 * 32 * 4
    assert memory[Tier.DEVICE, MemoryUse.STAGING] == 24 * 512 + 3 * (1 + 400 // 8) * record


@pytest.mark.parametrize("slow_rows", KEPT)
def test_after_a_flush_slots_hold_what_the_host_has_and_a_second_one_writes_nothing(slow_rows, monkeypatch):
    cached = collection(slow_rows, cache_ratio=1.0)
    for step in range(3):
        train(cached, ragged(step), step)
    before = evaluate(cached, ragged(9))
    cached.flush()
    flushed = evaluate(cached, ragged(9))
    assert not torch.equal(flushed, before)  # the slots were rounded too
    monkeypatch.setattr("systems.freq_cache.tiers.slow_tier.HostTier.write", None)
    cached.flush()
    monkeypatch.undo()
    again = collection("fp32", cache_ratio=1.0)
    again.load_state_dict(cached.state_dict())
    assert torch.equal(evaluate(again, ragged(9)), flushed)


@pytest.mark.parametrize(("ratio", "further"), [(1.0, 4), (0.3, 1)])
@pytest.mark.parametrize("slow_rows", KEPT)
def test_saving_loading_and_going_on_is_going_on_until_rows_leave_at_other_times(slow_rows, ratio, further, tmp_path):
    cached = collection(slow_rows, cache_ratio=ratio)
    for step in range(6):
        train(cached, ragged(step), step)
    cached.save(tmp_path)
    resumed, from_state = (collection(slow_rows, cache_ratio=ratio, seed=seed) for seed in (7, 8))
    resumed.load(tmp_path)
    from_state.load_state_dict(cached.state_dict())
    in_full = collection("fp32")
    in_full.load(tmp_path)  # a checkpoint has rows of fp32
    assert_same(snapshot(in_full), snapshot(cached))
    for step in range(6, 6 + further):
        for system in (cached, resumed, from_state):
            train(system, ragged(step), step)
    assert_same(snapshot(resumed), snapshot(cached))
    assert_same(snapshot(from_state), snapshot(cached))


@pytest.mark.parametrize("slow_rows", KEPT)
def test_rows_in_a_file_are_the_rows_in_memory_and_are_reopened_as_they_were(slow_rows, tmp_path: Path):
    in_memory, in_file = collection(slow_rows), collection(slow_rows, directory=tmp_path / "rows")
    assert_same(snapshot(in_file), snapshot(in_memory))  # first rows, computed when they are asked for
    for step in range(6):
        for system in (in_memory, in_file):
            train(system, ragged(step), step)
    in_file.commit()
    in_file.close()
    assert_same(snapshot(collection(slow_rows, directory=tmp_path / "rows")), snapshot(in_memory))
    with pytest.raises(ValueError, match="of another layout or of another seed"):
        collection("fp32", directory=tmp_path / "rows")


def test_tables_of_fp16_are_not_compressed_further():
    half = (table("whole", 9, 8), table("half", 9, 8, half=True))
    system, spec = spec_of("freq_cache[slow_rows=int8]", device=CPU, tables=half)
    answer = system.support(spec)
    assert answer.verdict is Verdict.UNSUPPORTED
    assert answer.reason.endswith("leave it at fp32, or change the data_type of half")
    with pytest.raises(ValueError, match="slow_rows 'int4' is none of fp32, fp16, int8"):
        collection("int4")


class LosesAWriteBack(FreqCache):
    """One row of every write-back does not arrive: in the slow tier it stays what it was when it was fetched."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        for cache in self.caches:
            cache.writer.write = self._without_the_first(cache.writer.write)

    @staticmethod
    def _without_the_first(write):
        def lossy(rows, records, *, batch):
            write(rows[1:], type(records)(records.tensor[1:], records.event), batch=batch)

        return lossy


@pytest.mark.slow
@pytest.mark.parametrize(("slow_rows", "kind"), [("fp16", OptimizerKind.SGD), ("int8", OptimizerKind.ADAGRAD)])
def test_verification_passes_a_rounding_cache_and_finds_a_lost_update(slow_rows, kind):
    variant, budget = f"freq_cache[slow_rows={slow_rows}]", CacheRatio(ratio=0.5)
    right, wrong = (
        verification_of(system, variant, budget=budget, kind=kind, dim=8) for system in (FreqCache, LosesAWriteBack)
    )
    assert right.passed, [check for check in right.checks if not check.passed]
    failed = {check.name for check in wrong.checks if not check.passed}
    assert {f"{kind.value}: after training, rows", "rowwise_adagrad: after training, rows"} <= failed


@pytest.mark.parametrize(
    ("asked", "levels"),
    [("freq_cache[tier=file]", 3), ("freq_cache[slow_rows=fp16,tier=file]", 3), ("freq_cache[levels=2,tier=file]", 2)],
)
def test_verification_moves_rows_through_ram_where_the_cell_has_that_level(
    asked: str, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, enter = [], RamIndex.enter

    def noted(self: RamIndex, rows: Any, *places: Any, **named: Any) -> None:
        entered.append(rows.size)
        enter(self, rows, *places, **named)

    monkeypatch.setattr(RamIndex, "enter", noted)
    budget = HostBytes(total_bytes=64 << 20, device_bytes=4 << 20)
    assert verification_of(FreqCache, asked, budget=budget).passed
    assert (sum(entered) > 0) == (levels == 3)
