"""Streams of a calibration."""

from __future__ import annotations

import numpy as np
import pytest
from advise_scenes import shape

from suite.advise.calibrate.streams import STREAMS, CalibrationTables, Stream, geometric_sizes


def test_steeper_streams_have_fewer_distinct_rows() -> None:
    tables = CalibrationTables(shape(rows=30_000, batch_size=1000))
    generator = np.random.default_rng(0)
    sizes = [
        tables.batch(Stream("", skew, 1.0), generator).features.values().unique().numel() for skew in (0, 0.9, 1.3)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_batches_are_fresh_and_within_their_tables() -> None:
    tables = CalibrationTables(shape(hotness=3))
    generator = np.random.default_rng(0)
    first, second = (tables.batch(STREAMS[1], generator) for _ in range(2))
    assert first.features.values().numel() == 64 * 3 * 3
    assert first.features.lengths().tolist() == [3] * 64 * 3
    assert not first.features.values().equal(second.features.values())
    for name, rows in zip(first.features.keys(), tables.rows, strict=True):
        ids = first.features.to_dict()[name].values()
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows
    assert tables.batch(STREAMS[3], generator).dense.shape == (16, 4)


def test_frequencies_are_those_of_the_steepest_stream() -> None:
    tables = CalibrationTables(shape(batch_size=20_000))
    batch = tables.batch(max(STREAMS, key=lambda stream: stream.skew), np.random.default_rng(0))
    name = tables.tables[1].name
    counted = np.bincount(batch.features.to_dict()[name].values().numpy(), minlength=tables.rows[1])
    expected = tables.frequencies()[name].numpy()
    assert counted.argmax() == expected.argmax()
    assert np.corrcoef(counted, expected)[0, 1] > 0.99


@pytest.mark.parametrize(("rows", "tables"), [(1_000_000, 26), (50_000, 13), (820, 3), (30, 7)])
def test_tables_rise_by_one_factor_to_the_rows_asked_for(rows: int, tables: int) -> None:
    sizes = geometric_sizes(rows, tables=tables)
    assert len(sizes) == tables
    assert rows - 2 * tables <= sum(sizes) <= rows
    assert list(sizes) == sorted(sizes)
    factors = [after / before for before, after in zip(sizes[-4:], sizes[-3:], strict=False) if before > 100]
    assert factors == pytest.approx([factors[0]] * len(factors) if factors else [], rel=0.02)


def test_large_tables_are_cut_to_half_a_gigabyte() -> None:
    tables = CalibrationTables(shape(tables=4, rows=10**9, embedding_dim=128))
    assert sum(table.num_embeddings for table in tables.tables) * 128 * 4 <= 1 << 29
