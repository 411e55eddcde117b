"""RocksDB with one and with several rows a value, in equal memory: rows read and written back batch by batch.

    python results/disk/rocksdb_values.py --out results/disk/rocksdb_values.json

Criteo Kaggle with the rows, the batches and the smaller budget of the contest's scale `small`. Rows of a value have
neighbouring ranks in the frequencies of the first tenth of the training data. A value is read and written whole.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from suite.records.environment import capture
from suite.records.scales import scale_of
from suite.records.store import write_json
from suite.run.resources import drive_traffic
from systems.rocksdb_table import RocksDBStore
from workloads.streams.synthetic import SyntheticWorkload

SCALE = scale_of("small", on_drive=True)
ROW_BYTES = 4 * SCALE.embedding_dim
MEMORY_BYTES = SCALE.host_budgets[0]
VARIANTS = {
    "1 row": (1, False),
    "1 row, by rank": (1, True),
    "8 rows, by rank": (8, True),
    "64 rows, by rank": (64, True),
}
"""Rows of a value, and whether keys follow the rank instead of the id."""
PASSES, STEPS, TIMED = 2, 20, 40
"""Passes over the variants, the second in reverse; untimed and timed batches of each."""
_LOADED_BYTES = 32 << 20
_WARMED_BYTES = 2 << 20

Ints = npt.NDArray[np.int64]


class Stream:
    """Distinct rows of batches, numbered over all tables; and their ranks."""

    def __init__(self) -> None:
        self._workload = SyntheticWorkload.create(
            "criteo_kaggle", batch_size=SCALE.batch_size, seed=0, max_rows=SCALE.max_rows
        )
        sizes = [rows for _, rows in self._workload.tables]
        self.rows = sum(sizes)
        self._first = np.cumsum([0, *sizes[:-1]])
        counts = self._workload.frequencies(0.1)
        self.by_rank = np.argsort(
            -np.concatenate([counts[name].numpy() for name, _ in self._workload.tables]), kind="stable"
        )
        self.rank = np.empty(self.rows, np.int64)
        self.rank[self.by_rank] = np.arange(self.rows)

    def distinct(self, batch: int) -> Ints:
        """Distinct rows of a batch, ascending."""
        ids = self._workload.batch(batch).features
        found: Ints = np.unique(ids.values().numpy() + np.repeat(self._first, ids.length_per_key()))
        return found


class Values:
    """A store whose values are several rows; all start as zeros, and the most frequent ones are read at last."""

    def __init__(self, folder: Path, stream: Stream, *, rows: int, by_rank: bool) -> None:
        self._rows, self._place = rows, stream.rank if by_rank else np.arange(stream.rows)
        self._bytes = rows * ROW_BYTES
        values = -(-stream.rows // rows)
        self.store = RocksDBStore(folder, records=values, memory_bytes=MEMORY_BYTES)
        at_once = _LOADED_BYTES // self._bytes
        for start in range(0, values, at_once):
            self.store.load(start, np.zeros((min(at_once, values - start), self._bytes), np.uint8))
        hot = self._place[stream.by_rank[: MEMORY_BYTES // ROW_BYTES]] // rows
        hot = hot[np.sort(np.unique(hot, return_index=True)[1])]
        at_once = _WARMED_BYTES // self._bytes
        for end in range(len(hot), 0, -at_once):
            self.store.read(np.sort(hot[max(0, end - at_once) : end]), self._bytes)

    def train(self, stream: Stream) -> dict[str, float]:
        """Read each batch's rows and write them back. Returns seconds, and bytes from and to the drive, per batch."""
        before, reading_s, start = drive_traffic(), 0.0, 0.0
        for batch in range(STEPS + TIMED):
            rows = stream.distinct(batch)
            if batch == STEPS:
                before, reading_s, start = drive_traffic(), 0.0, time.perf_counter()
            numbers = np.unique(self._place[rows] // self._rows)
            asked = time.perf_counter()
            values = self.store.read(numbers, self._bytes)
            reading_s += time.perf_counter() - asked
            self.store.write(numbers, values.__getitem__)
        os.sync()
        seconds, after = time.perf_counter() - start, drive_traffic()
        found = {"ms": 1e3 * seconds, "reading_ms": 1e3 * reading_s}
        found |= {"read_bytes": after[0] - before[0], "written_bytes": after[1] - before[1]}
        return {name: value / TIMED for name, value in found.items()}


def main() -> None:
    """Fill a store of every kind, one after the other, and train in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out, stream = parser.parse_args().out, Stream()
    batches: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for number in range(PASSES):
        for name in list(VARIANTS)[:: -1 if number % 2 else 1]:
            rows, by_rank = VARIANTS[name]
            with tempfile.TemporaryDirectory() as folder:
                values = Values(Path(folder), stream, rows=rows, by_rank=by_rank)
                with closing(values.store):
                    batches[name].append(values.train(stream))
            sys.stdout.write(f"{name}: {batches[name][-1]}\n")
    record = {
        "environment": capture().model_dump(mode="json"),
        "rows": stream.rows,
        "row_bytes": ROW_BYTES,
        "memory_bytes": MEMORY_BYTES,
        "batch_size": SCALE.batch_size,
        "timed_batches": TIMED,
        "batches": batches,
        "of_one_row": {
            name: statistics.geometric_mean(
                one["ms"] / base["ms"] for one, base in zip(passes, batches["1 row"], strict=True)
            )
            for name, passes in batches.items()
        },
    }
    write_json(out, record)


if __name__ == "__main__":
    main()
