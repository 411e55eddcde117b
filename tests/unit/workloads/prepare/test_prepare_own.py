import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from workloads import DataError
from workloads.__main__ import app
from workloads.manifest import IdRule, Settings, read_manifest
from workloads.prepare.formats import read_schema
from workloads.prepare.prepare import prepare
from workloads.prepare.text import hashed_strings
from workloads.prepare.workspace import MemoryBudget
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.schema import Split

SCHEMA = """
name = "shop"
split = {train = 0.6, validation = 0.2}
column = [
    {name = "when", kind = "time"},
    {name = "bought", kind = "label"},
    {name = "price", kind = "dense_float"},
    {name = "visits", kind = "dense_integer"},
    {name = "user", kind = "categorical_string", rows = 7},
    {name = "shelf", kind = "categorical_integer", rows = 5},
]
"""
ROWS = {
    "when": [1, 1, 2, 3, 5, 8, 13, 21, 34, 55],
    "bought": [1, 0, 0, 1, 0, 1, 0, 1, 1, 0],
    "price": [0.5, 1.25, None, 3.0, 4.5, 1e5, -2.0, 7.75, 8.0, 0.25],
    "visits": [3, None, -2, 4, 4, 4, 1, 0, -9, 2],
    "user": ["ann", "bob", "ann", None, "ann", "bob", "cy", "ann", "dora", None],
    "shelf": [4, 4, -1, None, 9, 4, 4, -1, 9, 7],
}
USERS = [1, 2, 1, 3, 1, 2, 0, 1, 0, 3]
SHELVES = [1, 1, 2, 3, 4, 1, 1, 2, 4, 0]


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(SCHEMA)
    return path


def own(schema, inputs, out, **more):
    return prepare(read_schema(schema), inputs, out=out, **more)


def rows_of(folder, part):
    return np.concatenate([np.load(folder / "shop" / f"{split}_{part}.npy") for split in Split])


def changed(name, row, value):
    frame = pl.DataFrame(ROWS)
    column = frame[name].to_list()
    column[row] = value
    return frame.with_columns(pl.Series(name, column, strict=False))


def test_csv_and_parquet_give_the_same_arrays_and_open_as_a_workload(tmp_path, schema):
    frame = pl.DataFrame(ROWS)
    frame.write_parquet(tmp_path / "shop.parquet", row_group_size=3)
    text = frame.with_columns(pl.lit("x,y").alias("note")).select("note", *reversed(frame.columns)).write_csv()
    (tmp_path / "shop.csv").write_text(text)
    one = own(schema, [tmp_path / "shop.csv"], tmp_path / "one")
    two = own(schema, [tmp_path / "shop.parquet"], tmp_path / "two", memory=MemoryBudget(512 << 20))
    assert one.files == two.files
    assert rows_of(tmp_path / "one", "ids").T.tolist() == [USERS, SHELVES]
    assert rows_of(tmp_path / "one", "labels").tolist() == ROWS["bought"]
    dense = rows_of(tmp_path / "one", "dense")
    assert dense[:, 0].tolist() == [price or 0.0 for price in ROWS["price"]]
    visits = np.array([visit or 0 for visit in ROWS["visits"]])
    assert dense[:, 1].tolist() == np.log(np.maximum(visits, -2) + 4, dtype=np.float32).tolist()

    folder = find_prepared(tmp_path / "one")["shop"]
    workload = PreparedWorkload.open(folder, batch_size=2)
    assert (workload.name, workload.tables, workload.dense_columns) == ("shop", (("user", 4), ("shelf", 5)), 2)
    assert [workload.batches(split) for split in Split] == [3, 1, 1]
    assert workload.batch(2).features.values().tolist() == [1, 2, 4, 1]
    manifest = read_manifest(folder)
    assert manifest.schema_file.name == "shop.toml"
    assert {column.name: column.kind for column in manifest.columns}["user"] == "categorical_string"
    (folder / "counts.npy").unlink()
    with pytest.raises(DataError, match=r"prepare --schema shop\.toml --input shop\.csv --out \S+one --overwrite"):
        PreparedWorkload.open(folder, batch_size=2)


def test_schema_file_and_several_inputs_on_the_command_line(tmp_path, schema):
    frame = pl.DataFrame(ROWS)
    frame[:4].write_csv(tmp_path / "a.csv")
    frame[4:].write_parquet(tmp_path / "b.parquet")
    words = ["prepare", "--schema", schema, "--input", tmp_path / "a.csv", tmp_path / "b.parquet", "--out", tmp_path]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "shop: 10 rows" in result.stdout
    assert rows_of(tmp_path, "ids").T.tolist() == [USERS, SHELVES]


def test_types_that_mean_the_same_are_taken_alike(tmp_path, schema):
    frame = pl.DataFrame(ROWS)
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(
        pl.col("when").cast(pl.Datetime("ms")),
        pl.col("bought").cast(pl.Boolean),
        pl.col("price").cast(pl.Float32),
        pl.col("visits").cast(pl.Int8),
        pl.col("user").cast(pl.Categorical),
        pl.col("shelf").cast(pl.Int16),
    ).write_parquet(tmp_path / "b.parquet")
    one = own(schema, [tmp_path / "a.parquet"], tmp_path / "one")
    assert own(schema, [tmp_path / "b.parquet"], tmp_path / "two").files == one.files


def test_headerless_text_goes_by_position_with_any_separator(tmp_path, schema):
    schema.write_text(SCHEMA.replace('name = "shop"', 'name = "shop"\nheader = false\nseparator = "|"', 1))
    (tmp_path / "rows").write_text(pl.DataFrame(ROWS).write_csv(separator="|", include_header=False))
    own(schema, [tmp_path / "rows"], tmp_path)
    assert rows_of(tmp_path, "ids").T.tolist() == [USERS, SHELVES]


def test_hashed_ids_use_the_rows_of_the_schema_file(tmp_path, schema):
    pl.DataFrame(ROWS).write_parquet(tmp_path / "rows")
    own(schema, [tmp_path / "rows"], tmp_path, settings=Settings(ids=IdRule.HASHED))
    names = hashed_strings(pl.Series(ROWS["user"])).to_list()
    ids = rows_of(tmp_path, "ids").T.tolist()
    assert ids == [[(name or 0) % 7 for name in names], [(shelf or 0) % 5 for shelf in ROWS["shelf"]]]
    schema.write_text(SCHEMA.replace(", rows = 5", ""))
    with pytest.raises(DataError, match="column shelf: how many rows has its table"):
        own(schema, [tmp_path / "rows"], tmp_path, settings=Settings(ids=IdRule.HASHED), overwrite=True)


def test_rows_out_of_time_order_are_refused_within_and_across_files(tmp_path, schema):
    changed("when", 6, 7).write_parquet(tmp_path / "a", row_group_size=4)
    place = r"a: row 7: column when: earlier than the row before it\. Sort"
    with pytest.raises(DataError, match=place):
        own(schema, [tmp_path / "a"], tmp_path / "out")
    changed("when", 6, 7).write_csv(tmp_path / "a")
    with pytest.raises(DataError, match=r"a:8: column when: earlier than the row before it\. Sort"):
        own(schema, [tmp_path / "a"], tmp_path / "out")
    frame = pl.DataFrame(ROWS)
    frame[:5].write_csv(tmp_path / "first")
    frame[5:].write_csv(tmp_path / "second")
    with pytest.raises(DataError, match=r"first begins earlier .* join them into one file and sort it"):
        own(schema, [tmp_path / "second", tmp_path / "first"], tmp_path / "out")
    own(schema, [tmp_path / "first", tmp_path / "second"], tmp_path / "out")
    assert rows_of(tmp_path / "out", "labels").tolist() == ROWS["bought"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed("price", 3, float("nan")), r"rows: row 4: column price: found 'NaN'"),
        (changed("price", 3, 1e39), r"row 4: column price: found '1e\+39', expected"),
        (changed("bought", 9, 2), r"rows: row 10: column bought: found '2',"),
        (changed("bought", 0, None), r"row 1: column bought: found '',"),
        (changed("shelf", 2, 10**18), r"row 3: column shelf: found '1000000000000000000', expected an integer"),
        (changed("when", 1, 2**63).with_columns(pl.col("when").cast(pl.UInt64)), r"row 2: column when: found '9223"),
        (pl.DataFrame(ROWS).drop("user"), r"no column user among when, bought, .*put the schema file right"),
        (pl.DataFrame(ROWS).with_columns(shelf=pl.lit(4.0)), r"row 1: column shelf: found '4.0', expected an integer"),
        (pl.DataFrame(ROWS).with_columns(user=pl.lit([1])), r"rows: rows 1 to 10 cannot be read \(cannot cast List"),
        (pl.DataFrame(ROWS).clear(), r"rows is empty: give a file with rows"),
        ("when;bought;price;visits;user;shelf\n", r"rows:1: no column when, .* \(separated by ','\)"),
        ("when,bought,price,visits,user,shelf,when\n", r"rows:1: the header names when twice"),
        ("when,bought,price,visits,user,shelf\n", r"holds no good row"),
    ],
)  # fmt: skip
def test_bad_file_is_reported_with_its_row_or_line_and_column(tmp_path, schema, rows, message):
    if isinstance(rows, str):
        (tmp_path / "rows").write_text(rows)
    else:
        rows.write_parquet(tmp_path / "rows", row_group_size=4)
    with pytest.raises(DataError, match=message):
        own(schema, [tmp_path / "rows"], tmp_path / "out")
    assert not (tmp_path / "out" / "shop").exists()


def test_bad_rows_of_parquet_are_left_out_within_the_allowance(tmp_path, schema):
    changed("price", 4, float("inf")).write_parquet(tmp_path / "rows")
    manifest = own(schema, [tmp_path / "rows"], tmp_path, settings=Settings(skip_bad_rows=1))
    assert manifest.skipped_rows == 1
    assert rows_of(tmp_path, "labels").tolist() == [*ROWS["bought"][:4], *ROWS["bought"][5:]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "shop"', "name = shop", "is not a TOML file: .*line 2"),
        ('name = "shop"', 'name = "../shop"', "name: String should match"),
        ('name = "shop"', 'name = "avazu"', "the name avazu belongs to a known dataset"),
        ('name = "shop"', 'name = "shop"\nseparator = ""', "separator: String should have at least 1 character"),
        ('name = "shop"', 'name = "shop"\nseparator = "+"', "separator and quote must be"),
        ('kind = "dense_float"', 'kind = "float"', r"columns\.3\.kind: Input should be 'label'"),
        ('kind = "dense_float"', 'kind = "label"', "2 columns of kind label, expected one"),
        ('kind = "label"', 'kind = "time"', "0 columns of kind label"),
        ('name = "price"', 'name = "user"', "column user is named twice"),
        ('name = "user"', 'name = "user.id"', "column user.id has a dot in its name"),
        ('kind = "dense_integer"', 'kind = "dense_integer", rows = 3', "column visits is no table and"),
        ("train = 0.6", "train = 0.9", "train and validation leave nothing to test"),
        ("train = 0.6", "tain = 0.6", r"split\.tain: Unexpected keyword argument"),
    ],
)  # fmt: skip
def test_schema_file_that_describes_no_dataset_is_refused(schema, old, new, message):
    schema.write_text(SCHEMA.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"shop\.toml:? ?{message}"):
        read_schema(schema)


def test_missing_schema_file_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"absent\.toml cannot be read: No such file"):
        read_schema(tmp_path / "absent.toml")
