"""Raw click logs to arrays that training maps into memory: stage, count, rank or hash, encode, publish.

Every step is a list of independent tasks: one per raw file, or one per table. A finished task leaves a folder whose
name says what it depends on, so that a killed run goes on where it stopped, and a cluster can share the work.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from workloads.errors import DataError
from workloads.manifest import (
    COUNTS,
    DATA_FILES,
    MANIFEST,
    TEMPORARY,
    ArrayFile,
    ColumnRecord,
    FileRecord,
    IdRule,
    InputRecord,
    Manifest,
    Settings,
    SplitRecord,
    TableRecord,
    array_file,
)
from workloads.prepare.cluster import InThreads, InTurn, OnCluster, Runner, Step
from workloads.prepare.columns import FORMATS, Column, Kind, RawFormat
from workloads.prepare.encoding import EncodeTask, array_shapes, encode
from workloads.prepare.memory_bound import Memory
from workloads.prepare.parsing import Advance, too_many_bad_rows, unheard
from workloads.prepare.splits import split_rows
from workloads.prepare.staging import StageTask, stage
from workloads.prepare.vocabulary import MOST_ROWS, CountTask, Vocabulary, VocabularyTask, build_vocabulary, count
from workloads.prepare.workspace import done, key_of, work_folder
from workloads.split import Split

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Report:
    """How far a preparation is.

    Attributes:
        step: What it does.
        done, total: Input bytes while reading, rows in other steps; `total` is 0 where it is not known.
        rows: Rows that the step has done.
    """

    step: str
    done: int
    total: int
    rows: int


Progress = Callable[[Report], None]


def prepare(
    dataset: str | RawFormat,
    inputs: Sequence[Path],
    *,
    out: Path,
    settings: Settings | None = None,
    overwrite: bool = False,
    restart: bool = False,
    memory: Memory | None = None,
    scheduler: str | None = None,
    schema_file: FileRecord | None = None,
    progress: Progress = lambda _report: None,
) -> Manifest:
    """Write `out/dataset` from raw files; nothing there is replaced unless all of it succeeds.

    What a run that fails or is killed has finished stays beside the output and is used by the next one.

    Args:
        dataset: A name in `FORMATS`, or a format of the user's own (`own_schema.read_schema`).
        inputs: Raw files in time order.
        out: Directory that gets a directory of the dataset's name.
        settings: How ids become rows, and bad rows; default: ranked, every id kept, no bad row allowed.
        overwrite: Replace an earlier output, at the very end.
        restart: Forget what an earlier run has finished.
        memory: Bound on resident memory, of this process or of each worker of the cluster.
        scheduler: Address of a Dask scheduler whose workers do the work; None for this process.
        schema_file: The file that `dataset` was read from.
        progress: Told how far it is.

    Returns:
        The manifest as written.

    Raises:
        DataError: anything that the user can mend, in a sentence.
    """
    raw = known_format(dataset) if isinstance(dataset, str) else dataset
    settings, memory = settings or Settings(), memory or Memory()
    _check_settings(settings, raw)
    _check_inputs(inputs)
    target = (out / raw.dataset).resolve()  # a link to another disk stays one: work and renames happen over there
    _check_target(target, overwrite=overwrite)
    work = target.parent / f".{raw.dataset}{TEMPORARY}work"
    cluster = OnCluster(scheduler) if scheduler is not None else None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(work, restart=restart):
            build = _Build(raw, tuple(inputs), settings, memory, work, cluster, schema_file, progress)
            manifest, made = build.run()
            _publish(made, target, aside=work / "replaced")
    except OSError as error:
        notes = f"; what was in {target} is intact" if target.exists() else ""
        notes += f"; run again to go on with what is finished in {work}" if work.exists() else ""
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left to prepare {target}: free some, or choose another --out{notes}") from error
        raise DataError(f"cannot write {error.filename or target}: {error.strerror}{notes}") from error
    finally:
        if cluster is not None:
            cluster.close()
    return manifest


def known_format(dataset: str) -> RawFormat:
    """The format of a known dataset.

    Raises:
        DataError: there is none of that name.
    """
    if dataset not in FORMATS:
        near = difflib.get_close_matches(dataset, FORMATS, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise DataError(f"unknown dataset '{dataset}'{hint} (known: {', '.join(FORMATS)})")
    return FORMATS[dataset]


@dataclass(frozen=True)
class _Build:
    """One preparation, from raw files to a folder that only needs to be put in place."""

    raw: RawFormat
    inputs: tuple[Path, ...]
    settings: Settings
    memory: Memory
    work: Path
    cluster: OnCluster | None
    schema_file: FileRecord | None
    progress: Progress

    def run(self) -> tuple[Manifest, Path]:
        """All steps in order; returns the manifest and the folder that holds it with all arrays."""
        staged = self._stage()
        notes = [done(folder) or {} for folder in staged]
        file_rows = [int(note["rows"]) for note in notes]
        splits, rule = split_rows(self.raw.dataset, file_rows, fractions=self.raw.fractions)
        starts = tuple(int(start) for start in np.cumsum([0, *file_rows[:-1]]))
        counted = self._count(staged, file_rows, splits[Split.TRAIN])
        vocabularies = self._vocabularies(counted, starts, splits[Split.TRAIN])
        minima = [note["minimum"] for folder in counted if (note := done(folder)) and note["minimum"] is not None]
        minimum = min(minima, default=None)
        made = self._create(splits, vocabularies)
        encoded = self._run(
            "writing",
            encode,
            [
                EncodeTask(self.raw, folder, made, self.work, start, splits, vocabularies, minimum, self.memory)
                for folder, start in zip(staged, starts, strict=True)
            ],
            totals=file_rows,
        )
        positives = {split: sum(part[str(split)] for part in encoded) for split in splits}
        self._write_counts(made, vocabularies)
        arrays = [made / name for name in _written()]
        sums = self._run("checksums", _sha256, arrays, totals=[path.stat().st_size for path in arrays], each=True)
        manifest = Manifest(
            dataset=self.raw.dataset,
            label=self.raw.label.name,
            columns=tuple(ColumnRecord(name=c.name, kind=c.kind.word) for c in self.raw.used),
            tables=tuple(
                TableRecord(name=column.name, rows=vocabulary.table_rows, training_ids=vocabulary.training_ids)
                for column, vocabulary in zip(self.raw.categorical, vocabularies, strict=True)
            ),
            id_rule=_id_rule(self.settings),
            dense_columns=tuple(column.name for column in self.raw.dense),
            dense_rule="integers: log(x - integer_minimum + 2), empty as 0; floats: as they are, empty as 0",
            integer_minimum=minimum,
            splits={
                str(split): SplitRecord(rows=rows, positives=positives[split], ctr=positives[split] / rows)
                for split, rows in splits.items()
            },
            split_rule=f"{rule}; input files in the order given",
            skipped_rows=sum(len(note["problems"]) for note in notes),
            settings=self.settings,
            schema_file=self.schema_file,
            inputs=tuple(
                InputRecord(name=path.name, bytes=note["bytes"], sha256=note["sha256"], rows=note["rows"])
                for path, note in zip(self.inputs, notes, strict=True)
            ),
            files=tuple(
                FileRecord(name=path.name, bytes=path.stat().st_size, sha256=found)
                for path, found in zip(arrays, sums, strict=True)
            ),
        )
        manifest.write(made)
        return manifest, made

    def _stage(self) -> list[Path]:
        allowed = self.settings.skip_bad_rows
        tasks = [StageTask(self.raw, path, self.work, self.memory, allowed) for path in self.inputs]
        sizes = [path.stat().st_size if path.is_file() else 0 for path in self.inputs]
        staged = self._run("reading", stage, tasks, totals=sizes)
        bad, last = 0, None
        for path, folder in zip(self.inputs, staged, strict=True):
            note = done(folder) or {}
            problems = note["problems"]
            if bad + len(problems) > allowed:
                raise too_many_bad_rows(path, problems[allowed - bad], allowed=allowed)
            bad += len(problems)
            if last is not None and note["times"] and note["times"][0] < last:
                raise DataError(
                    f"{path} begins earlier than the file before it ends: name the files in time order; where their "
                    "times overlap, join them into one file and sort it"
                )
            last = note["times"][1] if note["times"] else None
        return staged

    def _count(self, staged: Sequence[Path], file_rows: Sequence[int], training_rows: int) -> list[Path]:
        integers = tuple(i for i, column in enumerate(self.raw.dense) if column.kind is Kind.DENSE_INTEGER)
        tasks, left = [], training_rows
        for folder, rows in zip(staged, file_rows, strict=True):
            training = min(rows, left)
            left -= training
            if training:
                tasks.append(
                    CountTask(folder, self.work, self.memory, len(self.raw.categorical), integers, rows=training)
                )
        return self._run("counting", count, tasks, totals=[task.rows for task in tasks])

    def _vocabularies(
        self, counted: Sequence[Path], starts: Sequence[int], training_rows: int
    ) -> tuple[Vocabulary, ...]:
        memory = self.memory if self.cluster else self.memory.divided(InThreads.at_once)
        tasks = [
            VocabularyTask(
                column=position,
                name=column.name,
                counted=tuple(counted),
                starts=tuple(starts[: len(counted)]),
                training_rows=training_rows,
                work=self.work,
                memory=memory,
                min_count=self.settings.min_count,
                hashed_rows=hashed_rows(column, self.settings),
                signed=column.kind is Kind.CATEGORICAL_INTEGER,
            )
            for position, column in enumerate(self.raw.categorical)
        ]
        what = "ranking" if self.settings.ids is IdRule.RANK else "hashing"
        return tuple(self._run(what, build_vocabulary, tasks, totals=[training_rows] * len(tasks), each=True))

    def _create(self, splits: dict[Split, int], vocabularies: Sequence[Vocabulary]) -> Path:
        """The folder of the arrays, which get their full size."""
        names = [vocabulary.folder.name for vocabulary in vocabularies]
        made = self.work / f"made-{key_of(names, [[str(split), rows] for split, rows in splits.items()])}"
        if not made.exists():
            for mark in self.work.glob("encoded-*"):  # says that rows are in arrays, and these are gone
                shutil.rmtree(mark)
            made.mkdir()
        for (split, part), array in array_shapes(self.raw, splits).items():
            array.create(made / array_file(split, part))
        return made

    def _write_counts(self, made: Path, vocabularies: Sequence[Vocabulary]) -> None:
        array = ArrayFile((sum(vocabulary.table_rows for vocabulary in vocabularies),), np.dtype(np.int64))
        with (made / COUNTS).open("wb") as stream:
            stream.write(array.header)
            for vocabulary in vocabularies:
                for part in vocabulary.counts(self.memory.ranked_ids):
                    stream.write(part.data)

    def _run(
        self,
        what: str,
        function: Step[_Task, _Result],
        tasks: Sequence[_Task],
        *,
        totals: Sequence[int],
        each: bool = False,
    ) -> list[_Result]:
        """Run a step; `each` task uses one core, so that several run at a time."""
        runner: Runner = self.cluster or (InThreads() if each else InTurn())
        meter = _Meter(what, totals, self.progress)
        return runner.run(function, tasks, meter)


class _Meter:
    """Adds up how far the tasks of a step are."""

    def __init__(self, step: str, totals: Sequence[int], progress: Progress) -> None:
        self._step = step
        self._total = sum(totals)
        self._totals = totals
        self._done = [0] * len(totals)
        self._rows = [0] * len(totals)
        self._progress = progress
        self._report()

    def advance(self, position: int) -> Advance:
        """The listener of one task."""

        def listen(read: int, rows: int) -> None:
            self._done[position] = read or min(rows, self._totals[position])
            self._rows[position] = rows
            self._report()

        return listen

    def finish(self, position: int) -> None:
        """A task is done whose listener could not say so."""
        self._done[position] = self._totals[position]
        self._report()

    def _report(self) -> None:
        rows = sum(self._rows)
        self._progress(Report(self._step, done=sum(self._done), total=self._total, rows=rows))


def hashed_rows(column: Column, settings: Settings) -> int | None:
    """Rows of the table of a column of hashed ids, or None when ids are ranked.

    Raises:
        DataError: nobody says how large the table is.
    """
    if settings.ids is IdRule.RANK:
        return None
    sizes = [rows for rows in (column.rows, settings.table_rows) if rows is not None]
    if not sizes:
        raise DataError(
            f"column {column.name}: how many rows has its table? Give --table-rows N, or rows = N in the schema file"
        )
    return min(sizes)


def _id_rule(settings: Settings) -> str:
    if settings.ids is IdRule.RANK:
        return (
            "rows 1, 2, ... by decreasing count in the training split, ties by first appearance, the missing id among "
            "them; row 0 for ids below min_count and for ids that the training split lacks"
        )
    return "value modulo the rows of the table, also for ids that the training split lacks; a missing id as value 0"


def _sha256(path: Path, advance: Advance = unheard) -> str:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    advance(path.stat().st_size, 0)
    return found


def _written() -> list[str]:
    return [*(array_file(split, part) for split in Split for part in ("dense", "ids", "labels")), COUNTS]


def _check_settings(settings: Settings, raw: RawFormat) -> None:
    if settings.min_count < 1 or settings.skip_bad_rows < 0:
        raise DataError("--min-count must be at least 1 and --skip-bad-rows at least 0")
    if settings.table_rows is not None and not 1 <= settings.table_rows <= MOST_ROWS:
        raise DataError(f"--table-rows must be from 1 to {MOST_ROWS}")
    if settings.table_rows is not None and settings.ids is IdRule.RANK:
        raise DataError("--table-rows bounds tables of hashed ids: add --ids hashed")
    if settings.min_count > 1 and settings.ids is IdRule.HASHED:
        raise DataError("--min-count ranks ids: leave it out with --ids hashed")
    for column in raw.categorical:
        hashed_rows(column, settings)


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
    """Put the finished output in place; what it replaces goes with the work folder, or back on an error."""
    if not target.exists():
        made.rename(target)
        return
    target.rename(aside)
    try:
        made.rename(target)
    except BaseException:
        aside.rename(target)
        raise
