import gzip
import hashlib
import io
import random
import tarfile
import tracemalloc
import zlib

import pytest
import zstandard

from workloads import DataError
from workloads.prepare.lines import READ_BYTES, RawFile


def lines_of(path, block_bytes=1 << 16):
    return [
        (first + i, line)
        for first, text in RawFile(path).blocks(block_bytes)
        for i, line in enumerate(text.removesuffix(b"\n").split(b"\n"))
    ]


@pytest.mark.parametrize(
    "packed",
    [bytes, gzip.compress, zstandard.compress, lambda b: gzip.compress(b[:9]) + gzip.compress(b[9:]),
     lambda b: zstandard.compress(b[:9]) + zstandard.compress(b[9:])],
    ids=["plain", "gzip", "zstd", "two gzip members", "two zstd frames"],
)  # fmt: skip
def test_compression_is_told_by_content_not_by_name(tmp_path, packed):
    path = tmp_path / "misleading.csv.bz2"
    path.write_bytes(packed(b"first\nsecond\nthird"))
    assert lines_of(path) == [(1, b"first"), (2, b"second"), (3, b"third")]


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_lines_of_a_file_longer_than_a_block_keep_order_and_numbers_and_the_file_its_sum(tmp_path, packed):
    generator = random.Random(1)
    lines = [generator.randbytes(generator.randrange(400)).hex().encode() for _ in range(4000)]
    path = tmp_path / "big"
    path.write_bytes(packed(b"\n".join(lines) + b"\n"))
    assert path.stat().st_size > 2 * READ_BYTES
    assert lines_of(path) == list(enumerate(lines, start=1))
    file = RawFile(path)
    for _ in file.blocks(1 << 16):
        pass
    assert (file.bytes_read, file.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


NOISE = random.Random(2).randbytes(5000).hex().encode()
PACKED = {"gzip": gzip.compress(NOISE), "zstd": zstandard.compress(NOISE)}


def tar_of_one():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("train.txt"), io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (packed[: int(len(packed) * kept)], " ends in the middle.*download it again")
            for packed in PACKED.values()
            for kept in (0.5, 0.999)
        ),
        (PACKED["gzip"][:2500] + b"damaged" + PACKED["gzip"][2507:], " has damaged compressed data .*download it"),
        (b"PK\x03\x04 and so on", " is an archive: unpack it first"),
        (tar_of_one(), " is an archive: unpack it first"),
        *((pack(b""), " is empty") for pack in (bytes, gzip.compress, zstandard.compress)),
        (b"ok\n" + bytes(3 << 20), ":2: .*without a line end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_file_that_is_no_text_is_reported_with_the_remedy(tmp_path, content, message):
    (tmp_path / "raw").write_bytes(content)
    with pytest.raises(DataError, match=rf"raw{message}"):
        lines_of(tmp_path / "raw")


def test_word_that_marks_archives_is_text_further_on(tmp_path):
    (tmp_path / "rows").write_bytes((READ_BYTES + 257) * b"a" + b"ustar\n")
    assert len(lines_of(tmp_path / "rows")) == 1


def test_lines_may_end_with_a_carriage_return_and_the_last_without_a_line_end(tmp_path):
    for last in (b"b\rc", b"b\rc\n", b"b\rc\r\n", b"b\rc\r"):
        (tmp_path / "rows").write_bytes(b"a\r\n" + last)
        assert list(RawFile(tmp_path / "rows").blocks(100)) == [(1, b"a\nb\rc\n")]


def test_reading_stops_with_the_reader(tmp_path):
    (tmp_path / "rows").write_bytes(b"line\n" * 1_000_000)
    file = RawFile(tmp_path / "rows")
    blocks = file.blocks(1 << 16)
    next(blocks)
    blocks.close()
    assert file.bytes_read < 4 << 20


def bombs():
    """A quarter of a megabyte that unpacks to gigabytes, by name."""
    frame = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    packer = zlib.compressobj(9, wbits=31)
    gzipped = b"".join([*(packer.compress(bytes(1 << 24)) for _ in range(16)), packer.flush()])
    return {"zstd": frame * 8, "zstd of lines": zstandard.compress(b"\n" * (1 << 30)), "gzip": gzipped}


@pytest.mark.parametrize("name", ["zstd", "zstd of lines", "gzip"])
def test_little_that_unpacks_to_gigabytes_takes_little_memory(tmp_path, name):
    path = tmp_path / "bomb"
    path.write_bytes(bombs()[name])
    assert path.stat().st_size < READ_BYTES + (1 << 16)
    tracemalloc.start()
    try:
        blocks = RawFile(path).blocks(1 << 20)
        if name == "zstd of lines":
            next(blocks)
            blocks.close()
        else:
            with pytest.raises(DataError, match="bytes without a line end; is it text"):
                next(blocks)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()
