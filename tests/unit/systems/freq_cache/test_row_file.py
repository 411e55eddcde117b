"""Records in a file, past the page cache and through it."""

import errno
from pathlib import Path

import numpy as np
import pytest

from systems.freq_cache.tiers import row_file
from systems.freq_cache.tiers.row_file import STAGING_BYTES, Blocks, RowFile


@pytest.mark.parametrize("drive_block", [None, 4096])
@pytest.mark.parametrize(
    ("direct", "record_bytes"), [*((True, size) for size in (20, 512, 516, 4096 + 8)), (False, 516)]
)
def test_records_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool, record_bytes: int, drive_block: int | None
) -> None:
    if not direct:
        monkeypatch.setattr(row_file, "_NUMBERS", {})  # a machine without asynchronous access
    if drive_block is not None:
        monkeypatch.setattr(Blocks, "_least_block", lambda _: drive_block)
    random = np.random.default_rng(record_bytes)
    count = 2 * STAGING_BYTES // record_bytes + 7  # more than the buffer holds at a time
    kept = random.integers(0, 256, (count, record_bytes), np.uint8)
    file = RowFile(tmp_path / "rows.bin", record_bytes=record_bytes)
    assert direct or file._blocks.block_bytes == 1
    half = count // 2
    sums = np.concatenate([file.append(0, kept[:half]), file.append(half, kept[half:])])
    for _ in range(3):
        positions = random.permutation(count)[: count // 3]
        kept[positions] = random.integers(0, 256, (positions.size, record_bytes), np.uint8)
        sums[positions] = file.write(positions, kept[positions])
    file.sync()
    positions, found = random.permutation(count), np.zeros_like(kept)
    file.read(positions, found, places=positions, rows=positions, sums=sums[positions])
    assert np.array_equal(found, kept)
    file.close()
    again = RowFile(tmp_path / "rows.bin", record_bytes=record_bytes)
    assert again.positions >= count
    again.cut(half)
    with pytest.raises(OSError, match="it was cut while in use") as caught:
        again.read(np.array([count - 1]), found, places=np.array([0]), rows=np.array([0]), sums=sums[-1:])
    assert caught.value.errno == errno.EIO
    again.close()


@pytest.mark.parametrize("words", [1, 128])
def test_checksum_changes_with_any_byte_of_any_word(tmp_path: Path, words: int) -> None:
    file = RowFile(tmp_path / "rows.bin", record_bytes=4 * words)
    record = np.random.default_rng(words).integers(0, 256, (1, 4 * words), np.uint8)
    (sound,) = file.append(0, record)
    for place in np.arange(4 * words):
        changed = np.repeat(record, 255, axis=0)
        changed[:, place] ^= np.arange(1, 256, dtype=np.uint8)
        assert not np.any(file.append(0, changed) == sound)
    file.close()
