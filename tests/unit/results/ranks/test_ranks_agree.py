"""The published records of one and two ranks: the same training, and counts that add up."""

from pathlib import Path

import pytest

from suite.records.store import RecordStore
from systems.sharded.placement import PLACEMENTS

FOLDER = Path(__file__).resolve().parents[4] / "results" / "ranks"
TOLERANCE = 1e-7
"""Roundings move AUROC by up to 9.3e-5, but gradients of these ranks add up without."""
PAGE = " ".join((FOLDER.parents[1] / "docs" / "several-devices.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def measured():
    records, problems = RecordStore(FOLDER).load_all()
    assert problems == []
    assert {record.status.value for record in records} == {"ok"}
    return {(record.cell.system, record.cell.ranks): record.measurement for record in records}


def test_every_system_ran_on_one_rank_and_on_two(measured):
    systems = {system for system, _ in measured}
    assert set(measured) == {(system, ranks) for system in systems for ranks in (1, 2)}
    assert len(systems) == 3 + len(PLACEMENTS)


def test_two_ranks_trained_as_one(measured):
    assert f"AUROC and the last loss agree within {TOLERANCE:.0e}.".replace("e-07", "e-7") in PAGE
    for (system, ranks), two in measured.items():
        one = measured[system, 1]
        assert two.quality.auroc == pytest.approx(one.quality.auroc, abs=TOLERANCE), (system, ranks)
        assert two.quality.final_loss == pytest.approx(one.quality.final_loss, abs=TOLERANCE), (system, ranks)


def test_ranks_looked_up_what_one_rank_looks_up(measured):
    for (system, ranks), two in measured.items():
        one = measured[system, 1]
        assert len(two.ranks.shares) == ranks
        assert sum(share.lookups for share in two.ranks.shares) == one.traffic.lookups
        assert two.traffic.unique_ids == one.traffic.unique_ids, system  # a row has one owner
        assert sum(share.table_bytes for share in two.ranks.shares) == one.ranks.shares[0].table_bytes
        assert (one.ranks.shares[0].pooled_bytes, ranks == 1) in ((0, True), (0, False))


def test_placement_by_misses_evens_out_misses(measured):
    def imbalance(placement):
        misses = [share.unique_misses for share in measured[f"freq_cache{placement}", 2].ranks.shares]
        return max(misses) * len(misses) / sum(misses)

    assert imbalance("[placement=misses]") < 1.05
