"""The table of cells on ranks."""

from suite.records.groups import group_records
from suite.records.measured import Ranks, RankShare
from suite.tables.comparison import comparison, rank_tables
from tests.unit.suite.fabricate import record
from tests.unit.suite.report.report_scenes import lines_of


def share(lookups, *, misses, table_bytes):
    return RankShare(
        table_bytes=table_bytes,
        device_bytes=table_bytes // 10,
        host_peak_rss_bytes=10**9,
        lookups=lookups,
        unique_ids=lookups,
        unique_misses=misses,
        ids_bytes=4_000_000,
        pooled_bytes=16_000_000,
    )


def on_ranks(system, *shares, ranks=2):
    plain = record(system, setting={"ranks": ranks, "device": "cpu"})
    account = Ranks(backend="gloo", steps=4, steps_per_s=12.5, shares=shares)
    return plain.model_copy(
        update={"measurement": plain.measurement.model_copy(update={"ranks": account}), "turns": None}
    )


def test_the_table_shows_each_ranks_bytes_the_imbalances_and_what_was_sent_per_step():
    made = on_ranks(
        "freq_cache",
        share(300, misses=10, table_bytes=60_000_000),
        share(100, misses=30, table_bytes=20_000_000),
    )
    (block,) = rank_tables(group_records([made]))
    (shown,) = lines_of(block)
    assert shown["tables MB per rank"] == "20.00 to 60.00"
    assert (shown["lookups imbalance"], shown["misses imbalance"]) == ("1.50", "1.50")
    assert (shown["MB of ids sent per it"], shown["MB pooled sent per it"]) == ("2.00", "8.00")
    assert "gloo on one machine" in block.caption and "not ranked" in block.caption


def test_each_number_of_ranks_has_a_table_of_its_own_apart_from_the_comparison():
    one = share(400, misses=40, table_bytes=80_000_000)
    records = [
        on_ranks("freq_cache", one, ranks=1),
        on_ranks("freq_cache", one, one),
        record("full_gpu", setting={"device": "cpu"}),
    ]
    groups = group_records(records)
    assert [block.heading.split(", ")[-2] for block in rank_tables(groups)] == ["1 rank", "2 ranks"]
    assert len(groups) == 3
    sheet = comparison(groups)
    assert set(sheet.frame["ranks"].dropna()) == {1, 2}
    assert not sheet.frame["tf32"].any()
    names = [line["system"] for block in sheet.tables for line in block.lines]
    assert names.count("freq_cache") == 2
