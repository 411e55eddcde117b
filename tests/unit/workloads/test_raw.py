import gzip
import hashlib
import io
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from workloads.errors import DataError
from workloads.raw import BLOCK_BYTES, FORMATS, BadRows, Kind, Lines, RawFile

KAGGLE, AVAZU = FORMATS["criteo_kaggle"], FORMATS["avazu"]
CRITEO_ROW = [b"1", *(b"%d" % i for i in range(13)), *(b"%08x" % i for i in range(26))]
AVAZU_ROW = b"10000174,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,\
44956a24,1,2,15706,320,50,1722,0,35,-1,79".split(b",")


def criteo_line(**fields):
    names = [name for name, _ in KAGGLE.columns]
    return b"\t".join(fields.get(name, field) for name, field in zip(names, CRITEO_ROW, strict=True))


def lines_of(path):
    return [(chunk.first + i, line) for chunk in RawFile(path).chunks() for i, line in enumerate(chunk.lines)]


def parsed(tmp_path, raw, content, allowed=0):
    path = tmp_path / "rows"
    path.write_bytes(content)
    return list(raw.parse(RawFile(path), bad=BadRows(allowed)))


class OneLine(RawFile):
    """A file whose seventh line is the only one."""

    def __init__(self, line):
        super().__init__(Path("a/file"))
        self.line = line

    def chunks(self):
        yield Lines(7, [self.line])


# Reading


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
def test_lines_of_a_file_longer_than_a_block_keep_order_and_numbers(tmp_path, packed):
    generator = random.Random(1)
    lines = [generator.randbytes(generator.randrange(400)).hex().encode() for _ in range(4000)]
    path = tmp_path / "big"
    path.write_bytes(packed(b"\n".join(lines) + b"\n"))
    assert path.stat().st_size > 2 * BLOCK_BYTES
    assert lines_of(path) == list(enumerate(lines, start=1))


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_size_and_sum_are_those_of_the_file_on_disk(tmp_path, packed):
    path = tmp_path / "rows"
    path.write_bytes(packed(b"some\nrows\n" * 100_000))
    file = RawFile(path)
    for _ in file.chunks():
        pass
    assert (file.bytes_read, file.sha256) == (
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("kept", [0.05, 0.5, 0.999])
def test_truncated_compression_is_reported_and_says_download_again(tmp_path, compress, kept):
    data = compress(random.Random(2).randbytes(5000).hex().encode())
    path = tmp_path / "cut"
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DataError, match=r"cut.*ends in the middle.*download it again"):
        lines_of(path)


def test_damaged_gzip_is_reported(tmp_path):
    data = bytearray(gzip.compress(random.Random(2).randbytes(5000)))
    data[2500] ^= 0xFF
    (tmp_path / "bad.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.gz has damaged compressed data .*download it again"):
        lines_of(tmp_path / "bad.gz")


def test_archives_are_named_with_the_remedy(tmp_path):
    with zipfile.ZipFile(tmp_path / "train", "w") as archive:
        archive.writestr("train.txt", "x")
    with pytest.raises(DataError, match="zip archive: unpack it first"):
        lines_of(tmp_path / "train")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("train.txt"), io.BytesIO())
    (tmp_path / "dac.tar.gz").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"tar archive: unpack it first \(tar -xf"):
        lines_of(tmp_path / "dac.tar.gz")


@pytest.mark.parametrize("content", [b"", gzip.compress(b""), zstandard.compress(b"")], ids=["plain", "gzip", "zstd"])
def test_empty_file_is_reported(tmp_path, content):
    (tmp_path / "none").write_bytes(content)
    with pytest.raises(DataError, match="none is empty"):
        lines_of(tmp_path / "none")


def test_file_without_line_ends_stops_before_it_fills_the_memory(tmp_path):
    (tmp_path / "zeros").write_bytes(b"ok\n" + bytes(3 << 20))
    with pytest.raises(DataError, match=r"zeros:2: .*without a line end"):
        lines_of(tmp_path / "zeros")


# Rows


def test_values_of_a_criteo_row_with_long_ids_missing_fields_and_a_windows_line_end(tmp_path):
    line = criteo_line(label=b"0", I1=b"-2", I2=b"", C1=b"", C2=b"ffffffffffffffff", C3=b"345C4a755e") + b"\r\n"
    (rows,) = parsed(tmp_path, KAGGLE, line + criteo_line() + b"\n")
    assert rows.labels.tolist() == [0, 1]
    assert rows.dense[0].tolist() == [-2, 0, *range(2, 13)]
    assert rows.dense.dtype == np.int64
    assert rows.ids["value"][:3, 0].tolist() == [0, 2**64 - 1, 0x345C4A755E]
    assert rows.ids["missing"].sum() == 1
    assert rows.ids["missing"][0, 0]
    assert rows.ids.shape == (26, 2)


def test_values_of_an_avazu_row_follow_the_schema(tmp_path):
    (rows,) = parsed(tmp_path, AVAZU, AVAZU.header + b"\n" + b",".join(AVAZU_ROW) + b"\n")
    values = dict(zip((name for name, _ in AVAZU.schema.categorical), rows.ids["value"][:, 0].tolist(), strict=True))
    assert (values["C1"], values["site_id"], values["device_conn_type"]) == (1005, 0x1FBE01FE, 2)
    assert rows.dense.tolist() == [[15706, 320, 50, 1722, 0, 35, -1, 79]]
    assert rows.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (criteo_line(label=b"2"), r"column label: found '2', expected 0 or 1"),
        (criteo_line(label=b""), r"column label: found '', expected 0 or 1"),
        (criteo_line(I5=b"1.5"), r"column I5: found '1\.5', expected an integer"),
        (criteo_line(I5=b"1_000"), r"column I5: found '1_000', expected an integer"),
        (criteo_line(C26=b"xyz"), r"column C26: found 'xyz', expected at most 16 hex digits, or nothing"),
        (criteo_line(C1=b"0" * 17), r"column C1: found '0{17}', expected at most 16 hex digits"),
        (criteo_line(C1=b"0x1f"), r"column C1: found '0x1f', expected"),
        (criteo_line(C2=b"\xff\xfe"), r"column C2: found '\\xff\\xfe' \(not plain text: .*\), expected"),
        (criteo_line() + b"\t", r"41 columns found, expected 40 separated by tabs"),
        (b"", r"1 columns found, expected 40"),
    ],
)
def test_bad_row_is_reported_with_file_line_column_and_expectation(tmp_path, line, message):
    with pytest.raises(DataError, match=rf"rows:3: {message}.*--skip-bad-rows N"):
        parsed(tmp_path, KAGGLE, b"\n".join([criteo_line(), criteo_line(), line, criteo_line(), b""]))


def test_bad_rows_within_the_allowance_are_left_out_and_counted(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"\n".join([b"junk", criteo_line(I1=b"41"), criteo_line(C1=b"?"), criteo_line(I1=b"42"), b""]))
    bad = BadRows(2)
    (rows,) = KAGGLE.parse(RawFile(path), bad=bad)
    assert rows.dense[:, 0].tolist() == [41, 42]
    assert bad.count == 2
    with pytest.raises(DataError, match=r"rows:3: column C1.*\(bad row 2; --skip-bad-rows allows 1\)"):
        list(KAGGLE.parse(RawFile(path), bad=BadRows(1)))


@pytest.mark.parametrize("start", [b"", b"id,click\n", b"\xef\xbb\xbf" + AVAZU.header + b"\n"])
def test_wrong_or_missing_avazu_header_is_reported_with_the_right_one(tmp_path, start):
    with pytest.raises(DataError, match=r"rows:1: found .*make this the first line: id,click,hour,C1,.*,C21$"):
        parsed(tmp_path, AVAZU, start + b",".join(AVAZU_ROW))


def test_line_numbers_of_a_file_with_a_header_count_the_header(tmp_path):
    with pytest.raises(DataError, match=r"rows:3: column site_id: found 'xyz', expected"):
        good = b",".join(AVAZU_ROW)
        parsed(tmp_path, AVAZU, b"\n".join([AVAZU.header, good, good.replace(b"1fbe01fe", b"xyz"), b""]))


def is_valid(kind, field):
    """The rule of a column, written without regular expressions."""
    digits = set(field.decode("latin-1"))
    if kind is Kind.LABEL:
        return field in (b"0", b"1")
    if kind is Kind.HEX:
        return len(field) <= 16 and digits <= set("0123456789abcdefABCDEF")
    if kind is Kind.INTEGER:
        number = field[1:] if field.startswith(b"-") else field
        return field == b"" or (1 <= len(number) <= 18 and set(number.decode("latin-1")) <= set("0123456789"))
    return True


fields = st.one_of(
    st.binary(max_size=20).filter(lambda b: not set(b) & set(b"\n\r\t,")),
    st.text("0123456789abcdefABCDEF-+_x. ", max_size=18).map(str.encode),
)


@given(changes=st.dictionaries(st.integers(0, 39), fields, max_size=3))
@example(changes={1: b"-"})
@example(changes={14: b"g"})
def test_any_change_of_fields_parses_to_their_values_or_names_the_first_bad_column(changes):
    row = [changes.get(i, field) for i, field in enumerate(CRITEO_ROW)]
    bad = [name for (name, kind), field in zip(KAGGLE.columns, row, strict=True) if not is_valid(kind, field)]
    try:
        (rows,) = KAGGLE.parse(OneLine(b"\t".join(row)), bad=BadRows(0))
    except DataError as error:
        assert bad
        assert str(error).startswith(f"a/file:7: column {bad[0]}: found ")
    else:
        assert not bad
        assert rows.dense[0].tolist() == [int(field or b"0") for field in row[1:14]]
        assert rows.ids["value"][:, 0].tolist() == [int(field or b"0", 16) for field in row[14:]]
        assert rows.ids["missing"][:, 0].tolist() == [field == b"" for field in row[14:]]


@given(line=st.binary(max_size=300).filter(lambda b: b"\n" not in b), raw=st.sampled_from([KAGGLE, AVAZU]))
def test_any_line_parses_or_raises_with_its_position(line, raw):
    try:
        list(raw.parse(OneLine(line), bad=BadRows(0)))
    except DataError as error:
        assert str(error).startswith("a/file:7: ")
