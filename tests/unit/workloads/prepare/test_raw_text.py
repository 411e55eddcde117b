from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workloads import DataError
from workloads.prepare.formats import FORMATS, Kind, RawColumn, RawFormat
from workloads.prepare.lines import RawFile
from workloads.prepare.text import RowChecks, TextRows, hashed_strings

KAGGLE, AVAZU = FORMATS["criteo_kaggle"], FORMATS["avazu"]
AVAZU_HEADER = ",".join(column.name for column in AVAZU.columns).encode()
CRITEO_ROW = [b"1", *(b"%d" % i for i in range(13)), *(b"%08x" % i for i in range(26))]
AVAZU_LINE = b"10000174,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,\
44956a24,1,2,15706,320,50,1722,0,35,-1,79"
INTEGERS = [f"I{i}" for i in range(1, 14)]
IDS = [f"C{i}" for i in range(1, 27)]
OWN = RawFormat(
    "own",
    (
        RawColumn("click", Kind.LABEL),
        RawColumn("price", Kind.DENSE_FLOAT),
        RawColumn("user", Kind.CATEGORICAL_STRING),
        RawColumn("site", Kind.CATEGORICAL_INTEGER),
        RawColumn("hex", Kind.CATEGORICAL_HEX),
        RawColumn("note", Kind.IGNORED),
    ),
    separator=";",
    header=False,
    quote="'",
)


def criteo_line(**fields):
    names = [column.name for column in KAGGLE.columns]
    return b"\t".join(fields.get(name, field) for name, field in zip(names, CRITEO_ROW, strict=True))


def parsed(tmp_path, raw, content, allowed=0):
    path = tmp_path / "rows"
    path.write_bytes(content)
    return pl.concat(TextRows(raw, RawFile(path), RowChecks(path, allowed=allowed)).frames(1 << 20))


class OneLine(RawFile):
    """A file whose seventh line is the only one."""

    def __init__(self, line):
        super().__init__(Path("a/file"))
        self.line = line

    def blocks(self, block_bytes):
        yield 7, self.line + b"\n"


def one_line(raw, line):
    (frame,) = TextRows(raw, OneLine(line), RowChecks(Path("a/file"), allowed=0)).frames(1)
    return frame


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_values_of_a_criteo_row_with_long_ids_and_missing_fields(tmp_path, end):
    line = criteo_line(label=b"0", I1=b"-2", I2=b"", C1=b"", C2=b"ffffffffffffffff", C3=b"345C4a755e")
    rows = parsed(tmp_path, KAGGLE, line + end + criteo_line() + end)
    assert rows["label"].to_list() == [0, 1]
    assert rows.select(INTEGERS).row(0) == (-2, 0, *range(2, 13))
    assert set(rows.select(INTEGERS).dtypes) == {pl.Int64}
    assert rows.select("C1", "C2", "C3").row(0) == (None, 2**64 - 1, 0x345C4A755E)
    assert rows.select(IDS).null_count().sum_horizontal().item() == 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_values_of_an_avazu_row_follow_the_schema(tmp_path, mark):
    rows = parsed(tmp_path, AVAZU, mark + AVAZU_HEADER + b"\n" + AVAZU_LINE + b"\n")
    assert rows.select("C1", "site_id", "device_conn_type").row(0) == (1005, 0x1FBE01FE, 2)
    assert rows.select(f"C{i}" for i in range(14, 22)).row(0) == (15706, 320, 50, 1722, 0, 35, -1, 79)
    assert rows["click"].to_list() == [0]


@pytest.mark.parametrize(
    ("raw", "content", "message"),
    [
        *(
            (KAGGLE, b"\n".join([criteo_line(), line, criteo_line(), b""]), rf"2: {message}.*--skip-bad-rows N")
            for line, message in (
                (criteo_line(label=b""), r"column label: found '', expected 0 or 1"),
                (criteo_line(I5=b"1_000"), r"column I5: found '1_000', expected an integer"),
                (criteo_line(C1=b"0" * 17), r"column C1: found '0{17}', expected at most 16 hex digits, or nothing"),
                (criteo_line(C2=b"\xff\xfe"), r"column C2: found '\\xff\\xfe' \(not plain text: .*\), expected"),
                (criteo_line().replace(b"\t", b","), r"1 columns found, expected 40 separated by .\\t"),
            )
        ),
        (KAGGLE, b"\r".join([criteo_line(), criteo_line()]), r"1: 79 columns found"),
        (
            AVAZU,
            b"\n".join([AVAZU_HEADER, AVAZU_LINE, AVAZU_HEADER]),
            "3: column click: found 'click', expected",
        ),
        (AVAZU, AVAZU_LINE, "1: no column click, C1, .* among 10000174, 0, .*: put the header, or the schema file"),
        (OWN, b"1;1;'two\nlines';7;;x\n", "1: quotes that do not pair up in this line"),
    ],
)
def test_bad_text_is_reported_with_file_line_column_and_expectation(tmp_path, raw, content, message):
    with pytest.raises(DataError, match=rf"rows:{message}"):
        parsed(tmp_path, raw, content)


def test_bad_row_deep_in_a_large_block_is_found_by_its_line(tmp_path):
    lines = [criteo_line(I1=b"%d" % i) for i in range(12_000)]
    lines[9_000] += b"\t"
    with pytest.raises(DataError, match=r"rows:9001: 41 columns found"):
        parsed(tmp_path, KAGGLE, b"\n".join(lines))
    rows = parsed(tmp_path, KAGGLE, b"\n".join(lines), allowed=1)
    assert rows["I1"].to_list() == [i for i in range(12_000) if i != 9_000]


def test_long_lines_among_short_ones_are_read_line_by_line(tmp_path):
    """A block that cannot be cut into smaller ones, and a field longer than the csv module takes by itself."""
    short, long = b"1;2;'a';7;;x\n", b"1;2;'" + 700_000 * b"b" + b"';7;;x\n"
    rows = parsed(tmp_path, OWN, 60_000 * short + long + short)
    assert rows.height == 60_002
    assert rows["user"].to_list()[-2:] == hashed_strings(pl.Series([700_000 * "b", "a"])).to_list()


SECONDS = 1_577_836_800_000_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("0", 0),
        ("-5", -5),
        ("1700000000000000000", 1_700_000_000_000_000_000),
        (str(2**63 - 1), 2**63 - 1),
        ("2020-01-01 00:00:00", SECONDS),
        ("2020-01-01T00:00:59.000001", SECONDS + 59_000_001),
        (str(2**63), None),
        ("", None),
        ("1.5", None),
        ("2020-1-1 0:0:0", None),
        ("2020-01-01", None),
        ("2020-02-30 00:00:00", None),
        ("2020-01-01 24:00:00", None),
        ("2020-01-01 23:59:60", None),
        ("2020-01-01 00:00:00.1234567", None),
    ],
)
@pytest.mark.parametrize("label", [b"1", b"'1'"], ids=["block by block", "line by line"])
def test_times_are_the_same_whatever_stands_beside_them(field, value, label):
    raw = replace(OWN, columns=(RawColumn("t", Kind.TIME), *OWN.columns))
    line = field.encode() + b";" + label + b";;;;;"
    if value is not None:
        assert one_line(raw, line)["t"].to_list() == [value]
    else:
        with pytest.raises(DataError, match=r"7: column t: found '.*', expected an integer of 64 bits or YYYY"):
            one_line(raw, line)


def is_valid(kind, field):
    """The rule of a column, written without regular expressions."""
    text = field.decode("latin-1")
    if kind is Kind.LABEL:
        return field in (b"0", b"1")
    if kind is Kind.CATEGORICAL_HEX:
        return len(field) <= 16 and set(text) <= set("0123456789abcdefABCDEF")
    if kind in {Kind.DENSE_INTEGER, Kind.CATEGORICAL_INTEGER}:
        number = text.removeprefix("-")
        return text == "" or (1 <= len(number) <= 18 and set(number) <= set("0123456789"))
    if kind is Kind.DENSE_FLOAT:
        return text == "" or (set(text) <= set("0123456789.eE+-") and text[0] != "+" and is_finite(text))
    return True


def is_finite(text):
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(text))))
    except ValueError:
        return False


own_fields = st.one_of(
    st.text("0123456789.eE-+ naif", max_size=20).map(str.encode),
    st.text("01", max_size=2).map(str.encode),
    st.binary(max_size=6).filter(lambda b: not set(b) & set(b"\n\r;'")),
)


@given(row=st.tuples(*[own_fields] * 6))
@example(row=(b"1", b"1e5", b"\xc3\xa9", b"-7", b"Fe", b"\xff"))
@example(row=(b"1", b"1e39", b"", b"", b"", b""))
@example(row=(b"1", b"nan", b"", b"", b"", b""))
@example(row=(b"1", b".5", b"+", b"-0", b"", b""))
@example(row=(b"1", b"1e+5", b"\xff", b"", b"", b""))
@example(row=(b"1", b".", b"", b"", b"", b""))
@example(row=(b"\x1f\x8b", b"", b"", b"", b"", b""))
@example(row=(b"1", b"", b"", b"-", b"", b""))
@example(row=(b"1", b"", b"", b"+5", b"", b""))
@example(row=(b"1", b"", b"", b"-000000000000000001", b"", b""))
@example(row=(b"1", b"", b"", b"0" * 19, b"", b""))
@example(row=(b"1", b"", b"", b"", b"g", b""))
@example(row=(b"1", b"", b"", b"", b"+5", b""))
@example(row=(b"1", b"", b"", b"", b"-0", b""))
def test_columns_of_all_kinds_parse_to_their_values_or_name_the_first_bad_column(row):
    bad = [c.name for c, field in zip(OWN.columns, row, strict=True) if not is_valid(c.kind, field)]
    try:
        row[2].decode()
    except UnicodeDecodeError:
        bad = [name for name in ("click", "price", "user", "site", "hex") if name in [*bad, "user"]]
    try:
        rows = one_line(OWN, b";".join(row))
    except DataError as error:
        assert bad
        assert str(error).startswith(f"a/file:7: column {bad[0]}: found ")
    else:
        assert not bad
        assert rows["price"].item() == np.float32(float(row[1] or b"0"))
        assert rows["site"].cast(pl.Int64, wrap_numerical=True).item() == (int(row[3]) if row[3] else None)
        assert (rows["user"].item() is None) == (row[2] == b"")
        assert rows["hex"].item() == (int(row[4], 16) if row[4] else None)


@pytest.mark.parametrize("start", [b"\x1f\x8b", b"x\x01", b"x\x9c", b"x\xda", b"(\xb5/\xfd", b"\xef\xbb\xbf"])
def test_text_that_begins_like_a_packed_file_is_text(start):
    raw = replace(OWN, columns=(RawColumn("text", Kind.IGNORED), *OWN.columns), quote="")
    assert one_line(raw, start + b"rest;1;;;;;")["click"].to_list() == [1]


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path):
    raw = replace(OWN, columns=(RawColumn("id", Kind.CATEGORICAL_STRING), *OWN.columns))
    rows = parsed(tmp_path, raw, b"\xef\xbb\xbfann;1;3.4028235e38;;;;\nann;1;0;;;;\n")
    assert rows["id"].n_unique() == 1
    assert rows["price"][0] == np.finfo(np.float32).max


@pytest.mark.parametrize(("times", "fine"), [(("-9223372036854775808", "0"), True), ((f"{2**63 - 1}", "-2"), False)])
def test_extreme_times_are_compared_not_subtracted(tmp_path, times, fine):
    raw = replace(OWN, columns=(RawColumn("when", Kind.TIME), *OWN.columns))
    path = tmp_path / "rows"
    path.write_text("".join(f"{time};1;0;;;;\n" for time in times))
    frames = TextRows(raw, RawFile(path), RowChecks(path, allowed=0, time=raw.time)).frames(1 << 20)
    if fine:
        assert pl.concat(frames).height == 2
        return
    with pytest.raises(DataError, match="rows:2: column when: earlier than the row before it"):
        list(frames)


def test_quoted_fields_may_hold_the_separator(tmp_path):
    content = b"1;2.5;'a;b';7;a;x\n0;;'it''s';;;'y'\n1;1;a;1;;x\n"
    rows = parsed(tmp_path, OWN, content)
    assert rows["user"].to_list() == hashed_strings(pl.Series(["a;b", "it's", "a"])).to_list()
    assert rows["price"].to_list() == [2.5, 0, 1]


def test_hashes_of_text_are_the_same_everywhere_and_null_stays_null():
    assert hashed_strings(pl.Series(["clicks", None, "", "clicks"])).to_list() == [
        10313218569382249296, None, 1760245841805064774, 10313218569382249296,
    ]  # fmt: skip
