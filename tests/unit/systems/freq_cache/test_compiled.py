"""Compiled loops: kept on disk until a function changes that they hold a copy of, and they copy rows as torch does."""

import errno
import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from numba.core.caching import IndexDataCacheFile

from systems.freq_cache import compiled
from systems.freq_cache.compiled import in_parts, put_rows

INNER = "from systems.freq_cache.compiled import inlined\n\n\n@inlined\ndef added(x):\n    return x + {}\n"
OUTER = """
from inner import added
from systems.freq_cache.compiled import compiled


@compiled
def answer(x):
    return added(x)
"""


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[int, int]]:
    """What a loop says in a process of its own, where the function that it takes adds this; and loads of its code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "outer.py").write_text(OUTER)

    def say(number: int) -> tuple[int, int]:
        (tmp_path / "inner.py").write_text(INNER.format(number))
        compiled._digest.cache_clear()
        for name in ("inner", "outer"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        outer = importlib.import_module("outer")
        return outer.answer(1), sum(outer.answer.stats.cache_hits.values())

    return say


def test_loop_is_compiled_again_after_a_change_of_a_file_that_it_takes_functions_from(answer) -> None:
    assert [answer(number) for number in (1, 1, 41)] == [(2, 0), (2, 1), (42, 0)]


def test_a_full_drive_between_the_index_and_the_code_leaves_no_old_code_behind(answer, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert answer(1) == (2, 0)
    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_save_data", full)
        assert answer(41) == (42, 0)
    assert answer(41) == (42, 0)


ROWS, COUNT = 500, 300


def rows_and_values(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-99, 99, (ROWS, *shape), generator=generator).to(dtype)
    values = torch.randint(-99, 99, (COUNT, *shape), generator=generator).to(dtype)
    return table, torch.randperm(ROWS, generator=generator)[:COUNT], values


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def parts(request, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    monkeypatch.setattr(compiled, "_PART_BYTES", 64)


@pytest.mark.parametrize("numbers", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "dtype", "columns"),
    [
        ((), torch.float32, ...),
        ((1,), torch.int32, ...),
        ((4,), torch.float16, ...),
        ((6,), torch.float16, ...),
        ((33,), torch.float32, ...),
        ((128,), torch.float32, ...),
        ((9,), torch.float32, (slice(None), slice(0, 8))),
        ((9,), torch.float32, (slice(None), slice(1, 6))),
        ((9,), torch.float32, (slice(None), slice(3, 4))),
    ],
)
def test_rows_of_any_width_and_type_or_some_columns_of_them(parts, shape, dtype, columns, numbers):
    table, rows, values = rows_and_values(shape, dtype)
    expected = table.clone()
    expected[columns].index_copy_(0, rows, values[columns])
    put_rows(table[columns], rows.to(numbers), values[columns])
    assert table.equal(expected)


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_row_that_is_not_there_is_refused(parts, bad):
    table, rows, values = rows_and_values((8,), torch.float32)
    rows[COUNT // 2] = bad
    before = table.clone()
    with pytest.raises(IndexError, match=f"a table of 500 rows has no row {bad}$"):
        put_rows(table, rows, values)
    untouched = torch.ones(ROWS, dtype=torch.bool)
    untouched[rows[(rows >= 0) & (rows < ROWS)]] = False
    assert table[untouched].equal(before[untouched])


def test_no_part_goes_on_after_an_interrupt(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    ended = []

    def work(part: slice) -> None:
        if part.start == 0:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.2 * part.start)
        ended.append(part.start)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_parts(work, 2, most=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [0, 1]


def test_parts_are_shared_on_a_thread_that_outlives_the_main_one():
    """Pools of `concurrent.futures` are shut down once the main thread ends: training on another could not save."""
    script = (
        "import threading\n"
        "import torch\n"
        "from systems.freq_cache.compiled import in_parts\n"
        "def train():\n"
        "    threading.main_thread().join()\n"
        "    torch.set_num_threads(2)\n"
        "    done = []\n"
        "    in_parts(done.append, 2, most=2)\n"
        "    print(sorted(part.start for part in done))\n"
        "threading.Thread(target=train).start()\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[0, 1]\n", run.stderr


def test_compiling_is_not_interrupted():
    """LLVM's objects that were half made, or half loaded, would be freed twice, which ends the process."""

    def interrupted(number: int) -> int:
        return number + 1

    made = compiled.compiled(interrupted)
    load, loaded = made._cache.load_overload, []

    def loading(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        loaded.append(load(*arguments))
        return loaded[-1]

    made._cache.load_overload = loading
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            made(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(loaded) == 1
    assert made(1) == 2
