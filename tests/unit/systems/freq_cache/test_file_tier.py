"""The tier on disk: what it returns, what a crash leaves, what space it takes, and what it says when it cannot open."""

import errno
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache.tiers import file, row_map
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.row_file import RowFile

ROWS = 200
LAYOUT = RowLayout(4, torch.float32, {"sum": 1})


def first_weights(ids: Tensor, *, dim: int) -> Tensor:
    return ids[:, None] + torch.arange(dim) / 10


def first_records(rows: int, layout: RowLayout = LAYOUT) -> Tensor:
    records = torch.zeros(rows, layout.width, dtype=layout.dtype)
    layout.weights(records).copy_(first_weights(torch.arange(rows), dim=layout.dim))
    return records


def opened(directory: Path, *, rows: int = ROWS, layout: RowLayout = LAYOUT) -> FileTier:
    return FileTier(directory, rows=rows, layout=layout, initialize=partial(first_weights, dim=layout.dim))


def read(tier: FileTier, rows: Tensor | None = None) -> Tensor:
    rows = torch.arange(tier.rows) if rows is None else rows
    out = tier.layout.empty(rows.shape[0])
    out.view(torch.uint8).fill_(0xAB)
    tier.read(rows, out)
    return out


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[FileTier]:
    tier = opened(tmp_path / "tier")
    yield tier
    tier.close()


class AgainstADictionary(RuleBasedStateMachine):
    """Any sequence of writes, reads, commits, crashes and orderly reopenings leaves what a plain tensor would hold."""

    @initialize(dtype=st.sampled_from([torch.float32, torch.float16]))
    def start(self, dtype: torch.dtype) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.layout = RowLayout(4, dtype, {"sum": 1})
        self.tier = opened(Path(self.temporary.name) / "tier", layout=self.layout)
        self.now = first_records(ROWS, self.layout)
        self.committed, self.extra = self.now.clone(), None
        self.written = 0

    @rule(draw=st.data(), spread=st.booleans())
    def write(self, draw: st.DataObject, spread: bool) -> None:
        count = draw.draw(st.integers(0, ROWS if spread else 12))
        seed = draw.draw(st.integers(0, 2**32))
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(ROWS, generator=generator)[:count]
        self.written += 1
        records = torch.full((count, self.layout.width), float(self.written), dtype=self.layout.dtype)
        records += torch.arange(count, dtype=self.layout.dtype)[:, None] / 8
        self.tier.write(rows, records)
        self.now[rows] = records

    @rule(rows=st.lists(st.integers(0, ROWS - 1), max_size=30))
    def read_some_in_any_order_and_twice(self, rows: list[int]) -> None:
        wanted = torch.tensor(rows, dtype=torch.int64)
        assert torch.equal(read(self.tier, wanted), self.now[wanted])

    @rule(extra=st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.lists(st.booleans()), max_size=3))
    def commit(self, extra: dict[str, object]) -> None:
        self.tier.commit(extra)  # type: ignore[arg-type]
        self.committed, self.extra = self.now.clone(), extra

    @rule()
    def crash(self) -> None:
        self.tier.close()
        self.tier = opened(Path(self.temporary.name) / "tier", layout=self.layout)
        self.now = self.committed.clone()

    @invariant()
    def everything_is_as_written(self) -> None:
        assert torch.equal(read(self.tier), self.now)
        assert self.tier.committed_extra == self.extra

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            self.temporary.cleanup()


AgainstADictionary.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestAgainstADictionary = pytest.mark.slow(AgainstADictionary.TestCase)


def test_rows_never_written_cost_no_disk_and_nearly_no_ram(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, rows=1 << 28, layout=LAYOUT)
    rows = torch.tensor([0, 1 << 20, (1 << 28) - 1])
    tier.write(rows, torch.ones(3, LAYOUT.width))
    tier.commit({})
    assert read(tier, torch.tensor([1, 5, 1 << 20])).sum(1).tolist() == [0, 0, LAYOUT.width]
    tier.close()
    assert disk_bytes(tmp_path) <= 16 << 10
    again = FileTier(tmp_path, rows=1 << 28, layout=LAYOUT)
    assert torch.equal(read(again, rows), torch.ones(3, LAYOUT.width))
    again.close()


@pytest.mark.parametrize("commits", [True, False])
def test_rewriting_the_same_rows_does_not_grow_the_disk_without_bound(tier: FileTier, commits: bool) -> None:
    sizes = []
    for round_ in range(60):
        tier.write(torch.randperm(ROWS)[: ROWS // 2], torch.full((ROWS // 2, LAYOUT.width), float(round_)))
        if commits:
            tier.commit({})
        sizes.append(tier.memory()[Tier.DISK, MemoryUse.ROWS] // (4 * LAYOUT.dim))
    # at most: the rows, those retired since the last commit, a third of all free, one batch more
    assert max(sizes) <= (ROWS + ROWS // 2) * 1.5 + ROWS // 2
    assert len(set(sizes[30:])) == 1


def test_one_thread_reads_while_another_writes_other_rows_and_commits(tmp_path: Path) -> None:
    rows = 40_000
    tier = opened(tmp_path / "tier", rows=rows)
    even, odd = torch.arange(0, rows, 2), torch.arange(1, rows, 2)
    tier.write(even, torch.full((len(even), LAYOUT.width), -1.0))
    wrong: list[Tensor] = []
    done = threading.Event()

    def keep_reading() -> None:
        while not done.is_set():
            wanted = even[torch.randperm(len(even))[:5000]]
            found = read(tier, wanted)
            if not bool((found == -1).all()):
                wrong.append(found)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for round_ in range(40):
        tier.write(odd[torch.randperm(len(odd))[:7000]], torch.full((7000, LAYOUT.width), float(round_)))
        if round_ % 3 == 0:
            tier.commit({})
    done.set()
    reader.join()
    tier.close()
    assert not wrong


def test_failed_write_changes_nothing_and_may_be_repeated(tier: FileTier, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, records = torch.arange(150), torch.ones(150, LAYOUT.width)
    tier.write(rows, records)
    tier.commit({})
    before, held = read(tier), tier.memory()

    def full(file: int, data: list[memoryview], offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            with pytest.raises(OSError, match="No space left"):
                tier.write(torch.arange(50, 200), 2 * records)
        assert torch.equal(read(tier), before)
        assert tier.memory() == held
    tier.write(torch.arange(50, 200), 2 * records)
    assert torch.equal(read(tier)[50:], 2 * records)


def test_failed_commit_leaves_the_last_one_and_may_be_repeated(
    tier: FileTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        tier.commit({"step": torch.ones(1)})  # type: ignore[dict-item]
    assert read(tier)[:20].eq(2).all()
    tier.commit({"step": 3})
    tier.close()
    again = opened(tmp_path / "tier")
    assert again.committed_extra == {"step": 3}
    assert read(again)[:20].eq(2).all()
    again.close()


def test_rows_that_the_drive_lost_are_never_committed(tier: FileTier, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write(torch.arange(20), torch.ones(20, LAYOUT.width))
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "sync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "lost pages")))
        with pytest.raises(OSError, match="lost pages"):
            tier.commit({})
    with pytest.raises(OSError, match="open the tier anew"):
        tier.commit({})


def test_directory_in_use_is_refused_and_free_again_after_close(tier: FileTier, tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="in use by another live process"):
        opened(tmp_path / "tier")
    tier.close()
    opened(tmp_path / "tier").close()


def test_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="needs a directory"):
        opened(tmp_path / "file")


@pytest.mark.parametrize(
    ("rows", "layout", "message"),
    [
        (ROWS + 1, LAYOUT, "rows 200, not 201"),
        (ROWS, RowLayout(8, torch.float32, {"sum": 1}), "dim 4, not 8"),
        (ROWS, RowLayout(4, torch.float16, {"sum": 1}), "dtype float32, not float16"),
        (ROWS, RowLayout(4, torch.float32, {}), r"state \[\('sum', 1\)\], not \[\]"),
    ],
)
def test_other_rows_or_layout_are_refused_and_named(
    tier: FileTier, tmp_path: Path, rows: int, layout: RowLayout, message: str
) -> None:
    tier.commit({})
    tier.close()
    with pytest.raises(ValueError, match=f"map was written with {message}: ask for what"):
        opened(tmp_path / "tier", rows=rows, layout=layout)
    opened(tmp_path / "tier").close()  # the refusal let go of the lock


def test_more_rows_than_positions_can_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split the tables"):
        FileTier(tmp_path / "tier", rows=10**9 + 1, layout=LAYOUT)


def test_positions_that_run_out_are_used_again_and_none_beyond_the_last_is_taken(
    tier: FileTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2 * ROWS + 20  # as with 10**9 rows: two for each, and some
    for module in (file, row_map):
        monkeypatch.setattr(module, "MOST_POSITIONS", most)
    now, chance = first_records(ROWS), random.Random(7)
    for step in range(200):
        rows = torch.randperm(ROWS)[: chance.randrange(1, 20)]
        now[rows] = torch.randn(rows.numel(), LAYOUT.width)
        tier.write(rows, now[rows])
        assert torch.equal(read(tier), now)
        assert tier._positions.end <= most
        if chance.random() < 0.1:
            tier.commit({"step": step})
            kept = now.clone()
    assert tier._positions.end > most - 20
    tier.close()
    again = opened(tmp_path / "tier")
    assert torch.equal(read(again), kept)
    again.close()


def test_write_beyond_the_last_position_is_refused_and_changes_nothing(
    tier: FileTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (file, row_map):
        monkeypatch.setattr(module, "MOST_POSITIONS", ROWS + 10)
    tier.write(torch.arange(ROWS), torch.ones(ROWS, LAYOUT.width))
    tier.commit({})
    with pytest.raises(OSError, match="has no room for more rows: commit"):
        tier.write(torch.arange(11), torch.zeros(11, LAYOUT.width))
    assert read(tier).eq(1).all()
    tier.write(torch.arange(10), torch.zeros(10, LAYOUT.width))
    tier.commit({})
    tier.write(torch.arange(10), 2 * torch.ones(10, LAYOUT.width))
    assert read(tier)[:10].eq(2).all()


def test_map_of_another_version_is_refused(tier: FileTier, tmp_path: Path) -> None:
    tier.commit({})
    tier.close()
    path = tmp_path / "tier" / "map"
    path.write_bytes(path.read_bytes().replace(b"version 3", b"version 9", 1))
    with pytest.raises(ValueError, match="has version 9, this program reads version 3"):
        opened(tmp_path / "tier")


def test_row_outside_the_tier_is_refused(tier: FileTier) -> None:
    for row in (-1, ROWS):
        with pytest.raises(IndexError):
            tier.write(torch.tensor([row]), torch.ones(1, LAYOUT.width))
        with pytest.raises(IndexError):
            read(tier, torch.tensor([row]))
