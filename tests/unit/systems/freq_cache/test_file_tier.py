"""The tier on disk: what space it takes, what a failure leaves, and what it says when it cannot open."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from systems.contract import MemoryUse, Tier
from systems.freq_cache.tiers import commits, file
from systems.freq_cache.tiers.ram_index import RamIndex
from systems.freq_cache.tiers.row_file import RowFile
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.faults.kept_tiers import KeptTier

ROWS = 200
LAYOUT = RowLayout(4, torch.float32, {"sum": 1})


def opened(directory: Path, **choices: int) -> KeptTier:
    first = torch.arange(ROWS)[:, None] + torch.arange(LAYOUT.dim) / 10
    return KeptTier(directory, rows=ROWS, layout=LAYOUT, initialize=lambda rows: first[rows], **choices)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[KeptTier]:
    tier = opened(tmp_path / "tier")
    yield tier
    tier.close()


def test_rows_never_written_cost_no_disk_and_nearly_no_ram(tmp_path: Path) -> None:
    tier = KeptTier(tmp_path, rows=1 << 28, layout=LAYOUT)
    rows = torch.tensor([0, 1 << 20, (1 << 28) - 1])
    tier.write(rows, torch.ones(3, LAYOUT.width))
    tier.commit({})
    assert tier.held(torch.tensor([1, 5, 1 << 20])).sum(1).tolist() == [0, 0, LAYOUT.width]
    tier.close()
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*")) <= 24 << 10
    again = KeptTier(tmp_path, rows=1 << 28, layout=LAYOUT)
    assert torch.equal(again.held(rows), torch.ones(3, LAYOUT.width))
    again.close()


@pytest.mark.parametrize("commits", [True, False])
def test_rewriting_the_same_rows_does_not_grow_the_disk_without_bound(tier: KeptTier, commits: bool) -> None:
    sizes = []
    for round_ in range(60):
        tier.write(torch.randperm(ROWS)[: ROWS // 2], torch.full((ROWS // 2, LAYOUT.width), float(round_)))
        if commits:
            tier.commit({})
        sizes.append(tier.memory()[Tier.DISK, MemoryUse.ROWS] // (4 * LAYOUT.dim))
    # at most: the rows, those retired since the last commit, a third of all free, one batch more
    assert max(sizes) <= (ROWS + ROWS // 2) * 1.5 + ROWS // 2
    assert len(set(sizes[30:])) == 1


@pytest.mark.parametrize("ram_rows", [0, 4])
def test_failed_write_changes_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ram_rows: int
) -> None:
    """Whether the write to free positions fails, or the one that appends."""
    tier = opened(tmp_path, ram_bytes=ram_rows * (LAYOUT.record_bytes + RamIndex.BYTES))
    for number in range(4):
        tier.evict(torch.arange(150), torch.full((150, LAYOUT.width), float(number)))
        tier.commit({})
    before, after, rows = tier.held(), torch.full((150, LAYOUT.width), 9.0), (Tier.DISK, MemoryUse.ROWS)
    held = tier.memory()[rows]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for way in ("write", "append", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(RowFile, way, full)
            with pytest.raises(OSError, match="No space left"):
                tier.evict(torch.arange(50, 200), after)
        kept = ROWS if not ram_rows else 50  # of the others some may have entered RAM, and are written again
        assert torch.equal(tier.held()[:kept], before[:kept])
        assert tier.memory()[rows] == held
    tier.evict(torch.arange(50, 200), after)
    assert torch.equal(tier.held(), torch.cat([before[:50], after]))
    assert tier.memory()[rows] == held  # free positions were written
    tier.close()


def test_failed_commit_leaves_the_last_one_and_may_be_repeated(
    tier: KeptTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.write(torch.arange(20), torch.ones(20, LAYOUT.width))
    tier.commit({"step": 1})
    tier.write(torch.arange(20), 2 * torch.ones(20, LAYOUT.width))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "drive gone")))
        with pytest.raises(OSError, match="drive gone"):
            tier.commit({"step": 2})
    assert tier.committed_extra == {"step": 1}
    with pytest.raises(TypeError, match="not JSON serializable"):
        tier.commit({"step": torch.ones(1)})
    assert tier.held()[:20].eq(2).all()
    tier.commit({"step": 3})
    tier.close()
    again = opened(tmp_path / "tier")
    assert again.committed_extra == {"step": 3}
    assert again.held()[:20].eq(2).all()
    again.close()


def test_map_of_a_commit_that_was_given_up_frees_no_position(tier: KeptTier, tmp_path: Path) -> None:
    rows, records = torch.arange(150), torch.ones(150, LAYOUT.width)
    tier.write(rows, records)
    tier.commit({})
    tier.write(rows, 2 * records)
    tier.save_map(2)
    tier.write(rows, 3 * records)
    tier.close()
    again = opened(tmp_path / "tier")
    assert torch.equal(again.held()[:150], records)
    again.close()


def test_commit_that_may_not_last_is_made_to_last_before_anything_is_written(
    tier: KeptTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, records = torch.arange(150), torch.ones(150, LAYOUT.width)
    tier.write(rows, records)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "sync_directory", lambda _: (_ for _ in ()).throw(OSError("no directory today")))
        for attempt in (lambda: tier.commit({"step": 1}), lambda: tier.write(rows, 2 * records)):
            with pytest.raises(OSError, match="no directory today"):
                attempt()
    tier.write(rows, 2 * records)
    assert tier.committed_extra == {"step": 1}
    tier.close()
    again = opened(tmp_path / "tier")
    assert torch.equal(again.held()[:150], records)
    again.close()


def test_rows_that_the_drive_lost_are_never_committed(tier: KeptTier, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write(torch.arange(20), torch.ones(20, LAYOUT.width))
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "sync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "lost pages")))
        with pytest.raises(OSError, match="lost pages"):
            tier.commit({})
    with pytest.raises(OSError, match="open the tier anew"):
        tier.commit({})


def test_directory_in_use_is_refused_and_free_again_after_close(tier: KeptTier, tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="in use by another live process"):
        opened(tmp_path / "tier")
    tier.close()
    opened(tmp_path / "tier").close()


def test_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="kept in a directory"):
        opened(tmp_path / "file")


def test_more_rows_than_positions_can_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split the tables"):
        KeptTier(tmp_path / "tier", rows=10**9 + 1, layout=LAYOUT)


def test_positions_that_run_out_are_used_again_and_none_beyond_the_last_is_taken(
    tier: KeptTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2 * ROWS + 20  # as with 10**9 rows: two for each, and some
    for module in (file, commits):
        monkeypatch.setattr(module, "MOST_POSITIONS", most)
    now, chance = tier.held(), random.Random(7)
    for step in range(200):
        rows = torch.randperm(ROWS)[: chance.randrange(1, 20)]
        now[rows] = torch.randn(rows.numel(), LAYOUT.width)
        tier.write(rows, now[rows])
        assert torch.equal(tier.held(), now)
        assert tier._positions.end <= most
        if chance.random() < 0.1:
            tier.commit({"step": step})
            kept = now.clone()
    assert tier._positions.end > most - 20
    tier.close()
    again = opened(tmp_path / "tier")
    assert torch.equal(again.held(), kept)
    again.close()


def test_write_beyond_the_last_position_is_refused_and_changes_nothing(
    tier: KeptTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (file, commits):
        monkeypatch.setattr(module, "MOST_POSITIONS", ROWS + 10)
    tier.write(torch.arange(ROWS), torch.ones(ROWS, LAYOUT.width))
    tier.commit({})
    with pytest.raises(OSError, match="has no room for more rows: commit"):
        tier.write(torch.arange(11), torch.zeros(11, LAYOUT.width))
    assert tier.held().eq(1).all()
    tier.write(torch.arange(10), torch.zeros(10, LAYOUT.width))
    tier.commit({})
    tier.write(torch.arange(10), 2 * torch.ones(10, LAYOUT.width))
    assert tier.held()[:10].eq(2).all()


def test_directory_of_another_version_is_refused(tier: KeptTier, tmp_path: Path) -> None:
    tier.commit({})
    tier.close()
    path = tmp_path / "tier" / "commits"
    path.write_text(path.read_text().replace('"version": 5', '"version": 9'))
    with pytest.raises(ValueError, match="is of version 9, this code reads 5"):
        opened(tmp_path / "tier")
