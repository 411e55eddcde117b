"""Files of any bytes: what an independent reader finds, or an error that names the file."""

import csv
import io
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workloads import DataError
from workloads.prepare.formats import read_schema
from workloads.prepare.prepare import prepare
from workloads.schema import Split

TINY = """
name = "tiny"
split = {train = 0.4, validation = 0.3}
column = [
    {name = "y", kind = "label"},
    {name = "n", kind = "dense_integer"},
    {name = "h", kind = "categorical_hex"},
]
"""
pieces = st.sampled_from(
    [b"y,n,h\n", b"h,y,n\n", b"1,5,a\n", b"0,-3,\n", b"1,,ff\r\n", b"0,1,0\n", b"\n", b"\r\n", b",", b'"', b'0,"7",b\n',
     b"1,+5,a\n", b"2,1,a\n", b"1,1,-a\n", b"1,nan,a\n", b"1,1,1,1\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\x1f\x8b"]
)  # fmt: skip
texts = st.one_of(
    st.binary(max_size=40),
    st.lists(pieces, max_size=12).map(b"".join),
    st.lists(st.sampled_from([b"1,5,a\n", b"0,-3,\n", b"1,,ff\n", b"0,1,0\n"]), min_size=3, max_size=12).map(
        lambda lines: b"y,n,h\n" + b"".join(lines)
    ),
)


def independent_rows(content):
    """Rows of a file of `TINY`, read with the csv module alone; None where any line of it is bad."""
    text = content.decode("latin-1")
    lines = (text if text.endswith("\n") else text + "\n").replace("\r\n", "\n").removesuffix("\n").split("\n")
    rows = []
    for line in lines:
        try:
            rows.append(next(csv.reader(io.StringIO(line), strict=True), [""]) if '"' in line else line.split(","))
        except csv.Error:
            return None
    header, *rows = rows
    header = [name.encode("latin-1").decode(errors="replace") for name in header]
    if sorted({*header} & {*"ynh"}) != ["h", "n", "y"] or len({*header}) < len(header):
        return None
    found = []
    for row in rows:
        values = dict(zip(header, row, strict=False))
        number, name = values.get("n", "").removeprefix("-"), values.get("h", "")
        good = len(row) == len(header) and values["y"] in {"0", "1"} and set(number) <= set("0123456789")
        good = good and len(number) < 19 and (number != "" or values["n"] == "")
        if not good or len(name) > 16 or not set(name) <= set("0123456789abcdefABCDEF"):
            return None
        found.append((int(values["y"]), int(values["n"] or 0), int(name, 16) if name else None))
    return found if len(found) >= 3 else None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(content=texts)
@example(content=b'y,n,h\n1,1,a\n0,"2",b\n1,3,c\n0,1,\n')
@example(content=b"y,n,h\r\n1,1,a\r\n1,1,a\r\n1,1,a\r\n1,1,a")
@example(content=b"y,n,h\n1,1,a\n1,1,a\n1,1,a\ny,n,h\n1,1,a\n")
@example(content=b"PAR1")
@example(content=b"y,n,h,\n1,1,a,\xff\n1,1,a,\n1,1,a,")
def test_any_bytes_give_what_an_independent_reader_finds_or_an_error_that_names_the_file(content):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.toml").write_text(TINY)
        (folder / "rows").write_bytes(content)
        raw = read_schema(folder / "tiny.toml")
        expected = independent_rows(content)
        try:
            prepare(raw, [folder / "rows"], out=folder)
        except DataError as error:
            assert expected is None or len(content.splitlines()) < 5
            assert str(folder / "rows") in str(error) or "leave no row" in str(error)
            return
        assert expected is not None
        splits = [str(split) for split in Split]
        labels = np.concatenate([np.load(folder / "tiny" / f"{split}_labels.npy") for split in splits])
        dense = np.concatenate([np.load(folder / "tiny" / f"{split}_dense.npy") for split in splits])[:, 0]
        assert labels.tolist() == [label for label, _, _ in expected]
        lowest = min(number for _, number, _ in expected[: round(0.4 * len(expected))])
        numbers = np.array([max(number, lowest) for _, number, _ in expected])
        assert dense.tolist() == np.log(numbers - lowest + 2, dtype=np.float32).tolist()
        ids = np.load(folder / "tiny" / "train_ids.npy")[:, 0].tolist()
        names = [key for _, _, key in expected[: len(ids)]]
        assert len(set(zip(names, ids, strict=True))) == len(set(names)) == len(set(ids))


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 900), flips=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 255)), max_size=3))
def test_damaged_parquet_never_raises_anything_but_a_data_error(cut, flips):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.toml").write_text(TINY)
        frame = pl.DataFrame({"y": [1, 0, 1, 0, 1], "n": [3, 1, 4, 1, 5], "h": ["a", "b", None, "a", "c"]})
        frame.write_parquet(folder / "rows")
        content = bytearray((folder / "rows").read_bytes())
        for position, flip in flips:
            content[position % len(content)] ^= flip
        (folder / "rows").write_bytes(content[: len(content) - cut % len(content)])
        raw = read_schema(folder / "tiny.toml")
        try:
            prepare(raw, [folder / "rows"], out=folder)
        except DataError as error:
            assert str(folder / "rows") in str(error)
