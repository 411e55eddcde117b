"""Rows on a drive, in mapped files and in RocksDB: read as last written, memory as budgeted, no file left behind."""

import errno
import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from systems.contract import HostBytes, MemoryUse, OptimizerKind, Rows, Tier, Verdict
from systems.fbgemm.tbe_system import FullRAM
from systems.mapped_table import MappedTable
from systems.rocksdb_table import _STEP_BYTES, Bytes, Int64s, RocksDBStore, RocksDBTable
from systems.threads import Worker
from tests.contract.scenes import UNIFORM, assert_same, batch_of, evaluate, ragged, snapshot, spec, table, train


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("system", [MappedTable, RocksDBTable])
def test_rows_ask_for_a_drive_and_a_cpu(system: type[MappedTable | RocksDBTable]) -> None:
    setting = spec(table("a", 100, 4), device="cuda", kind=OptimizerKind.ADAGRAD)
    room = 1.0 if system is MappedTable else 1.5  # RocksDB compacts
    assert system.required_bytes(setting) == {Tier.DISK: room * 2 * 100 * 4 * 4}
    assert system.support(setting).verdict is Verdict.UNSUPPORTED


def test_mapped_rows_and_state_lie_in_the_files_one_table_after_the_other(directory: Path) -> None:
    a, b = table("a", 3, 4), table("b", 2, 4)
    system = MappedTable(spec(a, b, device="cpu", kind=OptimizerKind.ROWWISE_ADAGRAD))
    system.load_rows("b", 1, Rows(torch.arange(4.0)[None], {"sum": torch.tensor([5.0])}))
    (rows,), (state,) = directory.rglob("weights"), directory.rglob("momentum1")
    assert np.fromfile(rows, np.float32).tolist() == [0.0] * 16 + list(range(4))
    assert np.fromfile(state, np.float32).tolist() == [0, 0, 0, 0, 5]
    assert system.memory() == {(Tier.DISK, MemoryUse.ROWS): 20 * 4, (Tier.DISK, MemoryUse.STATE): 5 * 4}


def test_a_mapped_table_takes_its_files_and_no_memory(directory: Path) -> None:
    def own_bytes() -> int:
        pages = Path("/proc/self/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")  # resident, without files

    before = own_bytes()
    system = MappedTable(spec(table("large", 500_000, 128), device="cpu"))
    assert sum(file.stat().st_blocks * 512 for file in directory.rglob("weights")) >= 256_000_000
    assert own_bytes() - before < 64 << 20
    del system
    assert not list(directory.iterdir())


def test_full_drive_is_an_error_of_building_mapped_files_and_leaves_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as caught:
        MappedTable(spec(*UNIFORM, device="cpu"))
    assert caught.value.errno == errno.ENOSPC
    del caught
    assert not list(directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDBStore]:
    store = RocksDBStore(tmp_path, records=100_000, memory_bytes=4 << 20)
    yield store
    store.close()


def records(numbers: Int64s, salt: int) -> Bytes:
    return np.random.default_rng(salt).integers(0, 256, (100_000, 24), np.uint8)[numbers]


@pytest.mark.slow
def test_what_was_written_last_is_read_whether_loaded_or_written(store: RocksDBStore) -> None:
    everything = np.arange(100_000)
    expected = np.zeros((100_000, 24), np.uint8)
    draw = np.random.default_rng(0)
    for salt in range(12):
        if salt % 3 == 1:
            start, count = int(draw.integers(0, 60_000)), int(draw.integers(1, 40_000))
            chosen = np.arange(start, start + count)
            store.load(start, records(chosen, salt))
        else:
            chosen = np.unique(draw.integers(0, 100_000, 9_000))
            store.write(chosen, lambda place, n=chosen, salt=salt: records(n[place], salt))
        expected[chosen] = records(chosen, salt)
        assert np.array_equal(store.read(everything, 24), expected)


def test_drive_that_rocksdb_fills_is_an_oserror(store: RocksDBStore) -> None:
    class Full:
        def write(self, batch: object) -> None:
            raise Exception("IO error: No space left on device: While appending to file: rows/000009.sst")  # noqa: TRY002 - rocksdict's own

    rocksdb, store._rocksdb = store._rocksdb, Full()
    with pytest.raises(OSError, match="While appending") as caught:
        store.write(np.arange(3), lambda place: records(np.arange(3)[place], 0))
    assert caught.value.errno == errno.ENOSPC
    store._rocksdb = rocksdb


def test_rocksdb_trains_bitwise_as_all_rows_in_ram_while_its_pool_grows() -> None:
    large = table("large", 20_000, 8)
    ours, theirs = (system(spec(large, device="cpu", ratio=1.0)) for system in (RocksDBTable, FullRAM))
    rows = Rows(torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0)))
    for system in (ours, theirs):
        system.load_rows("large", 0, rows)
    for seed, ids in enumerate([[3, 3, 19_999], list(range(0, 20_000, 2)), list(range(12_000)), [3]]):
        batch = batch_of({"large": [ids, []]})
        assert torch.equal(train(ours, batch, seed), train(theirs, batch, seed))
    assert torch.equal(snapshot(ours)["large.weight"], snapshot(theirs)["large.weight"])


def test_pool_and_rocksdb_share_the_budget() -> None:
    budget = 64 << 20
    setting = replace(spec(table("large", 50_000, 32), device="cpu"), budget=HostBytes(total_bytes=budget))
    system = RocksDBTable(setting)
    held = []
    for count in (10, 30_000):
        train(system, batch_of({"large": [list(range(count))]}))
        memory = system.memory()
        held.append((memory[Tier.HOST, MemoryUse.STAGING], memory[Tier.HOST, MemoryUse.ROWS]))
        assert 0.85 * (budget - _STEP_BYTES) < sum(held[-1]) <= budget - _STEP_BYTES
    assert held[1][0] >= 30_000 * 32 * 4 > held[0][0]


def test_files_of_rocksdb_are_gone_with_the_system(directory: Path) -> None:
    system = RocksDBTable(spec(*UNIFORM, device="cpu"))
    train(system, ragged(0, UNIFORM))
    assert list(directory.rglob("CURRENT"))
    del system
    gc.collect()
    assert not list(directory.iterdir())


def test_second_look_up_before_backward_is_refused() -> None:
    system = RocksDBTable(spec(*UNIFORM, device="cpu"))
    pooled = system(ragged(0, UNIFORM)).values()
    with pytest.raises(RuntimeError, match="backward first"):
        system(ragged(1, UNIFORM))
    pooled.sum().backward()
    system(ragged(1, UNIFORM))


def test_reads_of_a_lookup_that_ctrl_c_ended_do_not_reach_later_batches() -> None:
    ours, theirs = (system(spec(*UNIFORM, device="cpu", ratio=1.0)) for system in (RocksDBTable, FullRAM))
    for system in (ours, theirs):
        for t in UNIFORM:
            system.load_rows(t.name, 0, Rows(torch.arange(8.0 * t.num_embeddings).view(-1, 8)))
    evaluate(ours, ragged(0, UNIFORM))
    rocksdb, go_on = ours._store._rocksdb, threading.Event()

    class Slow:
        def get(self, keys: list[bytes]) -> list[bytes]:
            signal.raise_signal(signal.SIGINT)
            go_on.wait()
            return rocksdb.get(keys)

    ours._store._rocksdb = Slow()
    with pytest.raises(KeyboardInterrupt):
        ours(ragged(0, UNIFORM))
    ours._store._rocksdb = rocksdb
    pooled = [system(ragged(1, UNIFORM)).values() for system in (ours, theirs)]
    for values in pooled:
        values.sum().backward()
    go_on.set()
    ours._store._readers.close()  # waits for them
    ours._store._readers = Worker("rocksdb-read")
    assert_same(snapshot(ours), snapshot(theirs))
