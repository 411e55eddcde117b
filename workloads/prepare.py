"""Raw click logs to arrays that training maps into memory: one reading pass, vocabularies, one writing pass."""

from __future__ import annotations

import difflib
import errno
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from workloads.batch import Split
from workloads.errors import DataError
from workloads.manifest import (
    COUNTS,
    DATA_FILES,
    MANIFEST,
    TEMPORARY,
    FileRecord,
    InputRecord,
    Manifest,
    NpyWriter,
    Settings,
    SplitRecord,
    TableRecord,
    array_file,
)
from workloads.raw import FORMATS, RAW_ID, BadRows, RawFile, RawFormat, RawIds, Rows
from workloads.schema import CRITEO_1TB, CRITEO_KAGGLE, SCHEMAS, DatasetSchema

WRITE_ROWS = 1 << 16
Progress = Callable[[str, int], None]


def prepare(
    dataset: str,
    inputs: Sequence[Path],
    *,
    out: Path,
    settings: Settings | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _stage, _rows: None,
) -> Manifest:
    """Write `out/dataset` from raw files; nothing is left behind, and nothing replaced, unless all of it succeeds.

    Args:
        dataset: A name in `SCHEMAS`.
        inputs: Raw files in time order.
        out: Directory that gets a directory of the dataset's name.
        settings: Rare ids and bad rows; default: every id kept, no bad row allowed.
        overwrite: Replace an earlier output, at the very end.
        progress: Called with a stage and the rows that it has done.

    Returns:
        The manifest as written.

    Raises:
        DataError: anything that the user can mend, in a sentence.
    """
    if dataset not in SCHEMAS:
        near = difflib.get_close_matches(dataset, SCHEMAS, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise DataError(f"unknown dataset '{dataset}'{hint} (known: {', '.join(SCHEMAS)})")
    settings = settings or Settings()
    if settings.min_count < 1 or settings.skip_bad_rows < 0:
        raise DataError("--min-count must be at least 1 and --skip-bad-rows at least 0")
    _check_inputs(inputs)
    target = (out / dataset).resolve()  # a link to another disk stays one: work and renames happen over there
    _check_target(target, overwrite=overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{dataset}{TEMPORARY}"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as name:
            workspace = Path(name)
            manifest = _build(FORMATS[dataset], inputs, settings=settings, workspace=workspace, progress=progress)
            _publish(workspace / "made", target, aside=workspace / "replaced")
    except OSError as error:
        intact = f"; what was in {target} is intact" if target.exists() else ""
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left to prepare {target}: free some, or choose another --out{intact}") from error
        raise DataError(f"cannot write {error.filename or target}: {error.strerror}{intact}") from error
    return manifest


def split_rows(dataset: str, file_rows: Sequence[int]) -> tuple[dict[Split, int], str]:
    """Rows of the splits in time order, and the rule in words.

    Criteo Kaggle and Avazu as in CachedEmbedding (`recsys/datasets` @a2af3d7e), Criteo 1TB as in torchrec's DLRM.

    Args:
        dataset: A name in `SCHEMAS`.
        file_rows: Rows of the raw files in time order.

    Raises:
        DataError: a split would be empty.
    """
    rows = sum(file_rows)
    if dataset == CRITEO_KAGGLE.name:
        rest, rule = rows - 6 * (rows // 7), "six of seven equal chunks train"
    elif dataset == CRITEO_1TB.name and len(file_rows) > 1:
        rest, rule = file_rows[-1], "the last file plays day 23, the others train"
    elif dataset == CRITEO_1TB.name:
        rest, rule = max(2, rows // 24), "a single file: its last 1/24 rows (at least 2) play day 23, the others train"
    else:
        rest, rule = rows // 10, "all but the last tenth train"
    splits = {Split.TRAIN: rows - rest, Split.VALIDATION: rest - rest // 2, Split.TEST: rest // 2}
    empty = [str(split) for split, count in splits.items() if count < 1]
    if empty:
        where = f", {file_rows[-1]} of them in the last file" if len(file_rows) > 1 else ""
        raise DataError(f"{rows} rows{where} leave no row for {' and '.join(empty)} ({rule}): give more rows")
    return splits, f"in time order; {rule}; first half of the rest, rounded up, validation, second half test"


@dataclass(frozen=True)
class Vocabulary:
    """Rows of one table for the ids of the training split.

    Attributes:
        values: uint64 `[ids]`, sorted; missing ids are not among them.
        rows: int32 `[ids]`, the row of each value; 0 where it is rare.
        missing_row: Row of the missing id.
        counts: int64 `[table rows]`, accesses in the training split.
        training_ids: Distinct ids seen, the missing one and rare ones included.
    """

    values: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.int32]
    missing_row: int
    counts: npt.NDArray[np.int64]
    training_ids: int

    @classmethod
    def of(cls, train: RawIds, *, min_count: int) -> Vocabulary:
        """Rows in order of decreasing count, ties by first appearance, from row 1 on.

        Args:
            train: `RAW_ID` `[training rows]`.
            min_count: Ids with fewer accesses go to row 0.
        """
        missing = train["missing"]
        present = np.flatnonzero(~missing)
        values, first, counts = np.unique(train["value"][present], return_index=True, return_counts=True)
        first = present[first]
        if len(present) < len(train):  # the missing id takes part in the ranking like any other, as the last entry
            first = np.append(first, np.argmax(missing))
            counts = np.append(counts, len(train) - len(present))
        order = np.lexsort((first, -counts))
        kept = order[counts[order] >= min_count]
        rows = np.zeros(len(counts), np.int32)
        rows[kept] = np.arange(1, len(kept) + 1, dtype=np.int32)
        row_counts = np.concatenate(([len(train) - counts[kept].sum()], counts[kept])).astype(np.int64)
        missing_row = int(rows[-1]) if len(rows) > len(values) else 0
        return cls(values, rows[: len(values)], missing_row, row_counts, training_ids=len(counts))

    def encode(self, ids: RawIds) -> npt.NDArray[np.int32]:
        """Rows of raw ids, int32 `[n]`; 0 for ids that the training split does not have."""
        if len(self.values):
            position = np.searchsorted(self.values, ids["value"]).clip(max=len(self.values) - 1)
            rows = np.where(self.values[position] == ids["value"], self.rows[position], np.int32(0))
        else:
            rows = np.zeros(len(ids), np.int32)
        rows[ids["missing"]] = self.missing_row
        return rows


class _Staging:
    """Parsed rows on disk, columns apart: where training ends is known only once every row has been read."""

    def __init__(self, folder: Path, schema: DatasetSchema) -> None:
        folder.mkdir()
        self._folder = folder
        self._dense_columns = len(schema.dense)
        self._names = ["labels", "dense", *(f"ids_{position}" for position in range(len(schema.categorical)))]
        self._streams: list[BinaryIO] = []
        self.rows = 0

    def __enter__(self) -> _Staging:
        self._streams = [(self._folder / name).open("wb") for name in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()

    def append(self, rows: Rows) -> None:
        for stream, column in zip(self._streams, (rows.labels, rows.dense, *rows.ids), strict=True):
            stream.write(column.tobytes())
        self.rows += len(rows)

    def labels(self) -> npt.NDArray[np.uint8]:
        return np.memmap(self._folder / "labels", np.uint8, mode="r")

    def dense(self) -> npt.NDArray[np.int64]:
        return np.memmap(self._folder / "dense", np.int64, mode="r", shape=(self.rows, self._dense_columns))

    def ids(self) -> list[RawIds]:
        return [np.memmap(self._folder / name, RAW_ID, mode="r") for name in self._names[2:]]


def _build(
    raw: RawFormat, inputs: Sequence[Path], *, settings: Settings, workspace: Path, progress: Progress
) -> Manifest:
    """Everything of the output, manifest last, in `workspace / "made"`."""
    bad = BadRows(settings.skip_bad_rows)
    records = []
    with _Staging(workspace / "staging", raw.schema) as staging:
        for path in inputs:
            before, file = staging.rows, RawFile(path)
            for rows in raw.parse(file, bad=bad):
                staging.append(rows)
                progress("reading", staging.rows)
            count = staging.rows - before
            if count == 0:
                raise DataError(f"{path} holds no good row: download it again, or leave it out")
            records.append(InputRecord(name=path.name, bytes=file.bytes_read, sha256=file.sha256, rows=count))
    splits, rule = split_rows(raw.schema.name, [record.rows for record in records])
    columns = staging.ids()
    vocabularies = [Vocabulary.of(ids[: splits[Split.TRAIN]], min_count=settings.min_count) for ids in columns]
    minimum = int(staging.dense()[: splits[Split.TRAIN]].min())
    made = workspace / "made"
    made.mkdir()
    files: list[FileRecord] = []
    start = 0
    split_records = {}
    for split, count in splits.items():
        stop = start + count
        files += _write_split(made, split, staging, span=(start, stop), vocabularies=vocabularies, minimum=minimum)
        positives = int(staging.labels()[start:stop].sum(dtype=np.int64))
        split_records[str(split)] = SplitRecord(rows=count, positives=positives, ctr=positives / count)
        start = stop
        progress("writing", stop)
    with NpyWriter(made / COUNTS, shape=(sum(len(v.counts) for v in vocabularies),), dtype=np.dtype(np.int64)) as npy:
        for vocabulary in vocabularies:
            npy.append(vocabulary.counts)
    tables = zip(raw.schema.categorical, vocabularies, strict=True)
    manifest = Manifest(
        dataset=raw.schema.name,
        tables=tuple(TableRecord(name=n, rows=len(v.counts), training_ids=v.training_ids) for (n, _), v in tables),
        dense_columns=raw.schema.dense,
        integer_minimum=minimum,
        splits=split_records,
        split_rule=f"{rule}; input files in the order given",
        skipped_rows=bad.count,
        settings=settings,
        inputs=tuple(records),
        files=(*files, npy.record()),
    )
    manifest.write(made)
    return manifest


def scaled(integers: npt.NDArray[np.int64], *, minimum: int) -> npt.NDArray[np.float32]:
    """Natural log of x - minimum + 2, as in torchrec's `BinaryCriteoUtils.tsv_to_npys`; x below the minimum is clipped.

    Args:
        integers: int64, any shape.
        minimum: Smallest integer of the training split, over all columns.

    Returns:
        float32, the same shape, at least log 2.
    """
    logs: npt.NDArray[np.float32] = np.log(np.maximum(integers, minimum) - (minimum - 2), dtype=np.float32)
    return logs


def _write_split(
    folder: Path,
    split: Split,
    staging: _Staging,
    *,
    span: tuple[int, int],
    vocabularies: Sequence[Vocabulary],
    minimum: int,
) -> list[FileRecord]:
    start, stop = span
    rows, labels, dense, columns = stop - start, staging.labels(), staging.dense(), staging.ids()

    def npy(part: str, dtype: type[np.generic], *width: int) -> NpyWriter:
        return NpyWriter(folder / array_file(split, part), shape=(rows, *width), dtype=np.dtype(dtype))

    with ExitStack() as stack:
        dense_file = stack.enter_context(npy("dense", np.float32, dense.shape[1]))
        ids_file = stack.enter_context(npy("ids", np.int32, len(columns)))
        labels_file = stack.enter_context(npy("labels", np.uint8))
        for first in range(start, stop, WRITE_ROWS):
            part = slice(first, min(first + WRITE_ROWS, stop))
            dense_file.append(scaled(dense[part], minimum=minimum))
            encoded = [v.encode(column[part]) for v, column in zip(vocabularies, columns, strict=True)]
            ids_file.append(np.stack(encoded, axis=1))
            labels_file.append(labels[part])
    return [file.record() for file in (dense_file, ids_file, labels_file)]


def _check_inputs(inputs: Sequence[Path]) -> None:
    if not inputs:
        raise DataError("no input files: name them after --input, in time order")
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if path.is_dir():
            raise DataError(f"{path} is a directory: name the files in it, in time order")
    if len({path.resolve() for path in inputs}) < len(inputs):
        raise DataError("an input file is named twice: name each once, in time order")
    days = [re.match(r"day_(\d+)", path.name) for path in inputs]
    numbers = [int(day[1]) for day in days if day]
    if len(numbers) == len(inputs) and numbers != sorted(numbers):
        given = " ".join(path.name for path in inputs)
        raise DataError(f"days out of order ({given}): name the files in time order, as in --input $(ls -v day_*)")


def _check_target(target: Path, *, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise DataError(f"{target} exists already: add --overwrite to replace it, or choose another --out")
    foreign = sorted({entry.name for entry in target.iterdir()} - {*DATA_FILES, MANIFEST}) if target.is_dir() else ["."]
    if foreign:
        raise DataError(
            f"{target} is or holds what prepare did not make ({', '.join(foreign[:5])}): choose another --out"
        )


def _publish(made: Path, target: Path, *, aside: Path) -> None:
    """Put the finished output in place; what it replaces goes with the workspace, or back where it was on an error."""
    if not target.exists():
        made.rename(target)
        return
    target.rename(aside)
    try:
        made.rename(target)
    except BaseException:
        aside.rename(target)
        raise
