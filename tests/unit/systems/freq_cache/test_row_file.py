"""Records in a file, past the page cache and through it."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from systems.freq_cache.tiers import row_file
from systems.freq_cache.tiers.blocks import STAGING_BYTES, Blocks, BufferedBlocks, open_blocks
from systems.freq_cache.tiers.row_file import RowFile


@pytest.mark.parametrize("record_bytes", [20, 512, 516, 4096 + 8])
@pytest.mark.parametrize("way", [open_blocks, BufferedBlocks], ids=["as the file system allows", "page cache"])
def test_records_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path], Blocks], record_bytes: int
) -> None:
    monkeypatch.setattr(row_file, "open_blocks", way)
    random = np.random.default_rng(record_bytes)
    count = 2 * STAGING_BYTES // record_bytes + 7  # more than the buffer holds at a time
    kept = random.integers(0, 256, (count, record_bytes), np.uint8)
    file = RowFile(tmp_path / "rows.bin", record_bytes=record_bytes)
    assert way is open_blocks or file._blocks.block_bytes == 1
    half = count // 2
    rows = random.permutation(count)
    file.append(0, kept[:half], rows=rows[:half])
    file.append(half, kept[half:], rows=rows[half:])
    for _ in range(3):
        positions = random.permutation(count)[: count // 3]
        kept[positions] = random.integers(0, 256, (positions.size, record_bytes), np.uint8)
        file.write(positions, kept[positions], rows=rows[positions])
    file.sync()
    positions, found = random.permutation(count), np.zeros_like(kept)
    file.read(positions, found, places=positions, rows=rows[positions])
    assert np.array_equal(found, kept)
    file.close()
    again = RowFile(tmp_path / "rows.bin", record_bytes=record_bytes)
    assert again.positions >= count
    again.cut(half)
    with pytest.raises(OSError, match="it was cut while in use") as caught:
        again.read(np.array([count - 1]), found, places=np.array([0]), rows=np.array([0]))
    assert caught.value.errno == errno.EIO
    again.close()
