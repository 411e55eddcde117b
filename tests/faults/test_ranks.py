"""Ranks: two compute what one computes, wrong ones are found out, and failing ones end in their status with all."""

from dataclasses import replace

import pytest

from suite.records.record import Status
from suite.run.resources import runs
from tests.faults.cells import GENEROUS, run, tiny_cell
from tests.faults.on_ranks import PIDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def on_ranks(name, tmp_path, monkeypatch, limits=GENEROUS, **changes):
    """How a fake's cell on two ranks ended, and the ranks' process ids."""
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv(PIDS, str(folder))
    ended = run(tiny_cell(f"tests.faults.on_ranks:{name}", ranks=2, **changes), tmp_path, limits=limits)
    return ended, [int(path.read_text()) for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("system", "ranks"),
    [
        ("full_gpu", 2),
        ("full_gpu[sharding=row_wise]", 2),
        ("freq_cache", 2),
        ("freq_cache[placement=rows]", 1),
        ("freq_cache[look_ahead=2,placement=rows]", 2),
        ("freq_cache[placement=misses]", 4),
        ("torchrec_uvm_caching", 2),
    ],
)
def test_ranks_compute_what_one_rank_computes(tmp_path, system, ranks):
    outcome = run(tiny_cell(system, ranks=ranks), tmp_path)
    assert outcome.status is Status.OK, outcome.reason
    assert {"sgd: losses", "sgd: data parallel, losses"} <= {check.name for check in outcome.verification.checks}
    assert [
        check.max_difference for check in outcome.verification.checks if check.name == "sgd: after training, rows"
    ] == [0]
    shares = outcome.measurement.ranks.shares
    assert len(shares) == ranks
    assert sum(share.lookups for share in shares) == 2 * 32 * 13  # counted steps, batch, tables
    assert all(share.pooled_bytes > 0 for share in shares) == (ranks > 1)


@pytest.mark.parametrize(
    "name",
    ["OtherRanksVectors", "LostUpdate", "TwoOwners[placement=rows]", "LosesState"],
)
def test_wrong_ranks_are_found_out(tmp_path, monkeypatch, name):
    ended, _ = on_ranks(name, tmp_path, monkeypatch)
    assert ended.status is Status.WRONG_ANSWER, ended.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Dies", "rank 1 was killed from outside (SIGKILL)"),
        ("Raises", "rank 1: ValueError: no table today"),
    ],
)
def test_a_rank_that_fails_ends_the_cell_with_its_reason_and_all_ranks(tmp_path, monkeypatch, name, reason):
    ended, pids = on_ranks(name, tmp_path, monkeypatch)
    assert (ended.status, ended.reason[: len(reason)]) == (Status.CRASHED, reason)
    assert ended.wall_s < GENEROUS.wall_s
    assert len(pids) == 2
    assert not any(map(runs, pids))


def test_a_rank_that_hangs_ends_the_cell_within_the_bound(tmp_path, monkeypatch):
    ended, pids = on_ranks("Hangs", tmp_path, monkeypatch, limits=replace(GENEROUS, stall_s=15))
    assert ended.status is Status.TIMEOUT, ended.reason
    assert ended.wall_s < GENEROUS.wall_s
    assert not any(map(runs, pids))


def test_a_system_without_a_form_for_ranks_is_unsupported(tmp_path):
    ended = run(tiny_cell("systems.reference:ReferenceSystem", ranks=2), tmp_path)
    assert ended.status is Status.UNSUPPORTED
    assert "cannot be spread over ranks" in ended.reason
