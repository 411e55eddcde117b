"""Training a table that is larger than memory: rows in a file tier against a memory-mapped `nn.EmbeddingBag`.

    python results/cache/file_tier.py --rows 177944275 --dim 128 --steps 20 --batch 2048 \
        --page-cache-bytes 2147483648 --directory DIRECTORY --out FILE

One table holds the 26 tables of Criteo 1TB one behind the other, scaled to `--rows`. A batch has one id per table, by
Zipf's law with exponent 1.05, every table's ranks scrambled over its rows, and no batch comes twice. A step looks the
batch up, takes a gradient and updates the rows by SGD. Making ids is outside the clock.

Each side runs in a spawned process, in a memory control group of its own (version 1). Both may use the same amount of
page cache: after the warm-up, and before each window, the limit of the group is set to the process's anonymous memory
and page tables, which differ from side to side, plus `--page-cache-bytes`. Where no such group can be made the record
says "page cache not held", and the figures are of little use unless the files are far larger than RAM.

The sides start from empty files. The mapped table is zero then, and a row that was never written is read from a hole in
the file, without any traffic: that favours it. The kernel is told not to read ahead in it.

Needs Linux. The record is JSON; throughput is the median of the windows, in samples per second.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from zipf_tables import ZipfTables, criteo_1tb_sizes

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.initial_rows import uniform_rows
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.layout import RowLayout
from workloads.schema import CRITEO_1TB

LR = 0.01
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is run.

    Attributes:
        rows, dim: Of the table, fp32.
        batch: Samples per step.
        steps, windows: Steps per window, and windows.
        warmup_steps: Steps before the first window.
        page_cache_bytes: Page cache that each side may use.
        cache_ratio: Share of the rows that has a slot, on the side that has slots.
    """

    rows: int
    dim: int
    batch: int
    steps: int
    windows: int
    warmup_steps: int
    page_cache_bytes: int
    cache_ratio: float


Step = Callable[[Tensor], None]
"""Trains on one batch: row ids of the table, int64 `[samples * 26]`, one bag each."""
Build = Callable[[Path, Setting], Step]
"""Makes the table's files in an empty directory."""


class IdStream:
    """Batches of row ids, int64 `[26 * samples]`, table after table; equal settings give equal batches."""

    def __init__(self, setting: Setting) -> None:
        sizes = criteo_1tb_sizes(setting.rows)
        self._tables = ZipfTables(sizes, seed=SEED)
        self._starts = np.cumsum([0, *sizes[:-1]])[:, None]
        self._batch = setting.batch

    def __next__(self) -> Tensor:
        return torch.from_numpy((self._tables.ids(self._batch) + self._starts).reshape(-1))


def mapped_table_random(directory: Path, setting: Setting) -> Step:
    """A plain `nn.EmbeddingBag` with sparse gradients and `torch.optim.SGD`, its weight a sparse file in memory."""
    size_bytes = setting.rows * setting.dim * 4
    file = os.open(directory / "weight.bin", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size_bytes)
    mapped = mmap.mmap(file, size_bytes)
    mapped.madvise(mmap.MADV_RANDOM)
    weight = torch.frombuffer(mapped, dtype=torch.float32).view(setting.rows, setting.dim)
    bag = nn.EmbeddingBag(setting.rows, setting.dim, mode="sum", sparse=True, _weight=weight)
    optimizer = torch.optim.SGD(bag.parameters(), lr=LR)
    direction = _direction(setting)

    def step(ids: Tensor) -> None:
        optimizer.zero_grad()
        (bag(ids[:, None]) * direction).sum().backward()
        optimizer.step()

    return step


def file_tier_without_cache(directory: Path, setting: Setting) -> Step:
    """Every batch's rows read from a file tier, updated and written back; nothing is kept between batches."""
    layout = RowLayout(setting.dim, torch.float32, {})

    def initialize(ids: Tensor, out: Tensor) -> None:
        uniform_rows(ids, rows=setting.rows, dim=setting.dim, seed=SEED, stream=0, out=out)

    tier = FileTier(directory, rows=setting.rows, layout=layout, initialize=initialize)
    direction = _direction(setting)

    def step(ids: Tensor) -> None:
        unique, inverse = torch.unique(ids, return_inverse=True)
        rows = layout.empty(unique.shape[0])
        tier.read(unique, rows)
        rows.requires_grad_()
        (nn.functional.embedding_bag(inverse[:, None], rows, mode="sum") * direction).sum().backward()
        assert rows.grad is not None
        tier.write(unique, rows.detach().sub_(rows.grad, alpha=LR))

    return step


def cached_file_tier(directory: Path, setting: Setting) -> Step:
    """The cache over a file tier, of `--cache-ratio` of the rows, LFU, every batch announced one step ahead."""
    sizes = criteo_1tb_sizes(setting.rows)
    names = [f"t{at}" for at in range(len(sizes))]
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=setting.dim)
        for name, rows in zip(names, sizes, strict=True)
    ]
    collection = CachedEmbeddingBagCollection(
        tables,
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=LR),
        cache_ratio=setting.cache_ratio,
        look_ahead=1,
        batch_lookups=setting.batch * len(sizes),
        directory=directory,
        seed=SEED,
    )
    starts = torch.from_numpy(np.cumsum([0, *sizes[:-1]]))[:, None]
    direction = _direction(setting).view(len(sizes), setting.batch, setting.dim).transpose(0, 1).flatten(1)
    lengths = torch.ones(len(sizes) * setting.batch, dtype=torch.int64)
    waiting: deque[KeyedJaggedTensor] = deque()

    def step(ids: Tensor) -> None:
        features = KeyedJaggedTensor(names, (ids.view(len(sizes), -1) - starts).view(-1), lengths=lengths)
        collection.prefetch(features)
        waiting.append(features)
        if len(waiting) > 1:  # trains on the batch before
            (collection(waiting.popleft()).values() * direction).sum().backward()

    return step


SIDES: dict[str, Build] = {
    "mapped_table_random": mapped_table_random,
    "file_tier_without_cache": file_tier_without_cache,
    "cached_file_tier": cached_file_tier,
}


def _direction(setting: Setting) -> Tensor:
    tables = len(CRITEO_1TB.categorical)
    return torch.randn(setting.batch * tables, setting.dim, generator=torch.Generator().manual_seed(SEED))


class MemoryGroup:
    """A memory control group (version 1) around this process; without effect where none can be made."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def held(self) -> str:
        """How the page cache is held, for the record."""
        return "page cache not held" if self._path is None else "memory control group, version 1"

    def enter(self) -> None:
        """Put this process in."""
        if self._path is not None:
            (self._path / "cgroup.procs").write_text(str(os.getpid()))

    def allow(self, page_cache_bytes: int) -> None:
        """Limit the group to what this process holds outside of files, and so much page cache."""
        if self._path is None:
            return
        own = 1024 * (status_kib("RssAnon") + status_kib("VmPTE"))
        for attempt in range(20):
            try:
                (self._path / "memory.limit_in_bytes").write_text(str(own + page_cache_bytes))
            except OSError:  # busy: pages must be written to the drive before they can go
                if attempt == 19:
                    raise
                time.sleep(0.5)
            else:
                return


@contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """A new group below that of this process, removed at the end."""
    path = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, below = line.split(":", 2)
        if controllers == "memory":
            path = Path("/sys/fs/cgroup/memory") / below.lstrip("/") / f"{name}-{os.getpid()}"
    try:
        if path is not None:
            path.mkdir()
    except OSError:
        path = None
    try:
        yield MemoryGroup(path)
    finally:
        if path is not None:
            path.rmdir()


def status_kib(field: str) -> int:
    """A field of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def traffic_bytes() -> dict[str, int]:
    """Bytes that this process has read from and written to drives."""
    pairs = [line.split(": ") for line in Path("/proc/self/io").read_text().splitlines()]
    return {name: int(value) for name, value in pairs if name in {"read_bytes", "write_bytes"}}


def run_side(name: str, directory: Path, setting: Setting, group: MemoryGroup) -> None:
    """What a side's process does; it leaves its record in `directory`."""
    group.enter()
    step, stream = SIDES[name](directory, setting), IdStream(setting)
    for _ in range(setting.warmup_steps):
        step(next(stream))
    speeds, before = [], traffic_bytes()
    for _ in range(setting.windows):
        group.allow(setting.page_cache_bytes)
        batches = [next(stream) for _ in range(setting.steps)]
        start = time.perf_counter()
        for ids in batches:
            step(ids)
        speeds.append(setting.steps * setting.batch / (time.perf_counter() - start))
    after = traffic_bytes()
    files = [path.stat() for path in directory.rglob("*") if path.is_file()]
    record = {
        "side": name,
        "samples_per_s": statistics.median(speeds),
        "windows_samples_per_s": speeds,
        "peak_rss_bytes": 1024 * status_kib("VmHWM"),
        "anonymous_bytes": 1024 * status_kib("RssAnon"),
        "disk_bytes": sum(512 * file.st_blocks for file in files),
        "read_bytes": after["read_bytes"] - before["read_bytes"],
        "written_bytes": after["write_bytes"] - before["write_bytes"],
        "page_cache": group.held,
    }
    (directory / "record.json").write_text(json.dumps(record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=CRITEO_1TB.table_rows)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="steps per window")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--page-cache-bytes", type=int, default=2 << 30)
    parser.add_argument("--cache-ratio", type=float, default=0.01, help="of the side that has a cache")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--directory", type=Path, help="where the tables go; default: the system's temporary directory")
    parser.add_argument("--out", type=Path, required=True)
    arguments = vars(parser.parse_args())
    out, sides, parent = arguments.pop("out"), arguments.pop("sides"), arguments.pop("directory")
    setting = Setting(**arguments)
    records = []
    for name in sides:
        with tempfile.TemporaryDirectory(dir=parent, prefix="table-") as directory, memory_group(name) as group:
            side = multiprocessing.get_context("spawn").Process(
                target=run_side, args=(name, Path(directory), setting, group)
            )
            side.start()
            side.join()
            if side.exitcode:
                raise SystemExit(f"{name} ended with exit code {side.exitcode}")
            records.append(json.loads((Path(directory) / "record.json").read_text()))
            sys.stdout.write(f"{name}: {records[-1]['samples_per_s']:,.0f} samples/s\n")
    out.write_text(json.dumps({"setting": asdict(setting), "sides": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
