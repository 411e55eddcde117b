"""Raw click logs to arrays that training maps into memory: stage, count, rank or hash, encode, publish.

Every step is a list of independent tasks: one per raw file, or one per table. A finished task leaves a folder whose
name says what it depends on, so that a killed run goes on where it stopped, and a cluster can share the work.
"""

import errno
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from workloads import DataError
from workloads.manifest import (
    COUNTS,
    DATA_FILES,
    MANIFEST,
    TEMPORARY,
    ColumnRecord,
    FileRecord,
    IdRule,
    InputRecord,
    Manifest,
    Settings,
    SplitRecord,
    TableRecord,
)
from workloads.prepare.cluster import Cluster
from workloads.prepare.encoding import Arrays, create_arrays, encode
from workloads.prepare.formats import FORMATS, RawFormat, split_rows
from workloads.prepare.staging import count, stage
from workloads.prepare.text import too_many_bad_rows
from workloads.prepare.vocabulary import Vocabulary, build_vocabulary, hashed_rows
from workloads.prepare.workspace import (
    UNFINISHED,
    Advance,
    Finished,
    Job,
    MemoryBudget,
    key_of,
    publish,
    put_in_place,
    removed,
    threads,
    work_folder,
)
from workloads.schema import Split

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done and how much there is: bytes while reading, rows in other
steps; 0 where it is not known."""
_ID_RULES = {
    IdRule.RANK: "rows 1, 2, ... by decreasing count in the training split, ties by first appearance, the missing id "
    "among them; row 0 for ids below min_count and for ids that the training split lacks",
    IdRule.HASHED: "value modulo the rows of the table, also for ids that the training split lacks; a missing id as "
    "value 0",
}
Task = TypeVar("Task")
Result = TypeVar("Result")


def prepare(
    dataset: str | RawFormat,
    inputs: Sequence[Path],
    *,
    out: Path,
    settings: Settings | None = None,
    overwrite: bool = False,
    restart: bool = False,
    memory: MemoryBudget | None = None,
    scheduler: str | None = None,
    progress: Progress = lambda _step, _done, _total: None,
) -> Manifest:
    """Write `out/dataset` from raw files; nothing there is replaced unless all of it succeeds.

    Steps that were finished before a run failed or was killed stay on disk next to the output; the next run uses them.

    Args:
        dataset: A name in `FORMATS`, or a format of the user's own (`formats.read_schema`).
        inputs: Raw files in time order.
        out: Directory that gets a directory of the dataset's name.
        settings: How ids become rows, and bad rows; default: ranked, every id kept, no bad row allowed.
        overwrite: Replace an earlier output, at the very end.
        restart: Forget what an earlier run has finished.
        memory: Bound on resident memory, of this process or of each worker of the cluster.
        scheduler: Address of a Dask scheduler whose workers do the work; None for this process.
        progress: Called while it works.

    Raises:
        DataError: a wrong argument, bad input, or an output that cannot be written; the message says what to do.
    """
    raw = FORMATS.get(dataset) if isinstance(dataset, str) else dataset
    if raw is None:
        raise DataError(f"unknown dataset '{dataset}' (known: {', '.join(FORMATS)})")
    settings, memory = settings or Settings(), memory or MemoryBudget()
    _check_settings(settings, raw)
    target = (out / raw.name).resolve()  # a link to another disk stays one: work and renames happen over there
    work = target.parent / f".{raw.name}{TEMPORARY}work"
    cluster = Cluster(scheduler) if scheduler is not None else None
    try:
        _check_inputs(inputs)
        _check_target(target, overwrite=overwrite, work=work)
        target.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(work, restart=restart, target=target):
            _check_target(target, overwrite=overwrite)  # again: it may have been put back
            job = Job(raw, settings, memory, work)
            manifest, made = _Build(job, tuple(inputs), cluster, progress).run()
            _check_target(target, overwrite=overwrite)  # another may have been put there meanwhile
            publish(made, target, work=work)
    except OSError as error:
        notes = f"; what was in {target} is intact" if target.exists() else ""
        notes += f"; run again to go on with what is finished in {work}" if work.exists() else ""
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left to prepare {target}: free some, or choose another --out{notes}") from error
        raise DataError(f"cannot read or write {error.filename or target}: {error.strerror}{notes}") from error
    finally:
        if cluster is not None:
            cluster.close()
    return manifest


def _check_settings(settings: Settings, raw: RawFormat) -> None:
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
    if len(numbers) == len(inputs) and numbers != sorted(set(numbers)):
        given = " ".join(path.name for path in inputs)
        raise DataError(f"days out of order or twice ({given}): name each once, in order, as in --input $(ls -v day_*)")


def _check_target(target: Path, *, overwrite: bool, work: Path | None = None) -> None:
    """Refuse a target that may not be replaced. `work`: the work folder, which a killed run may have left beside it."""
    if not target.exists():
        return
    if not overwrite:
        left = [] if work is None else [str(path) for path in (work, removed(work)) if path.exists()]
        note = f"; {' and '.join(left)} is left of a run that was killed: delete it" if left else ""
        raise DataError(f"{target} exists already: add --overwrite to replace it, or choose another --out{note}")
    foreign = sorted({entry.name for entry in target.iterdir()} - {*DATA_FILES, MANIFEST}) if target.is_dir() else ["."]
    if foreign:
        names = ", ".join(foreign[:5])
        raise DataError(f"{target} is or holds what prepare did not make ({names}): choose another --out")


@dataclass(frozen=True)
class _Build:
    """One preparation, from raw files in time order to a folder that only needs to be put in place.

    Tasks run on `cluster`, or in this process.
    """

    job: Job
    inputs: tuple[Path, ...]
    cluster: Cluster | None
    progress: Progress

    def run(self) -> tuple[Manifest, Path]:
        """All steps in order; returns the manifest and the folder that holds it with all arrays."""
        staged = self._stage()
        rows = [file.note["rows"] for file in staged]
        raw = self.job.raw
        splits, rule = split_rows(raw.name, rows, fractions=raw.split)
        training = splits[Split.TRAIN]
        starts: list[int] = np.cumsum([0, *rows[:-1]]).tolist()
        # files without training rows are not counted
        parts = [
            (file.folder, min(found, training - start))
            for file, found, start in zip(staged, rows, starts, strict=True)
            if start < training
        ]
        counted = self._run("counting", partial(count, self.job), parts, totals=[found for _, found in parts])
        minimum = min((m for file in counted if (m := file.note["minimum"]) is not None), default=None)
        build = partial(build_vocabulary, self.job, list(zip(counted, starts, strict=False)), training)
        what = "ranking" if self.job.settings.ids is IdRule.RANK else "hashing"
        columns = range(len(raw.categorical))
        vocabularies = tuple(self._run(what, build, columns, totals=[training] * len(columns), each=True))
        arrays = Arrays(self._create(splits, vocabularies, staged), splits, vocabularies, minimum)
        files = [(file.folder, start) for file, start in zip(staged, starts, strict=True)]
        encoded = self._run("writing", partial(encode, self.job, arrays), files, totals=rows)
        self._write_counts(arrays)
        written = [arrays.made / name for name in DATA_FILES]
        sizes = [path.stat().st_size for path in written]
        records = self._run("checksums", lambda path, _: FileRecord.of(path), written, totals=sizes, each=True)
        positives = {split: sum(part[str(split)] for part in encoded) for split in splits}
        manifest = self._manifest(arrays, staged, rule, positives=positives, files=tuple(records))
        manifest.write(arrays.made)
        return manifest, arrays.made

    def _stage(self) -> list[Finished]:
        allowed = self.job.settings.skip_bad_rows
        sizes = [path.stat().st_size if path.is_file() else 0 for path in self.inputs]
        staged = self._run("reading", partial(stage, self.job), self.inputs, totals=sizes)
        bad, last = 0, None
        seen: dict[str, Path] = {}
        for path, (_, note) in zip(self.inputs, staged, strict=True):
            if (twin := seen.setdefault(note["sha256"], path)) is not path:
                raise DataError(f"{twin} and {path} have the same content: name it once, or test rows would train too")
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

    def _create(
        self, splits: Mapping[Split, int], vocabularies: Sequence[Vocabulary], staged: Sequence[Finished]
    ) -> Path:
        """The folder of the arrays, which get their full size; one that an earlier run has made keeps its values."""
        # of the files too: those without training rows are in no vocabulary
        names = [vocabulary.folder.name for vocabulary in vocabularies], [file.folder.name for file in staged]
        made = self.job.work / f"made-{key_of(*names)}"
        if not made.exists():
            for mark in self.job.work.glob("encoded-*"):  # says that rows are in arrays, and these are gone
                shutil.rmtree(mark)
            empty = made.with_name(made.name + UNFINISHED)
            shutil.rmtree(empty, ignore_errors=True)
            empty.mkdir()
            create_arrays(empty, self.job.raw, splits)
            put_in_place(empty, made)
        return made

    def _write_counts(self, arrays: Arrays) -> None:
        rows = sum(vocabulary.table_rows for vocabulary in arrays.vocabularies)
        with (arrays.made / COUNTS).open("wb") as stream:
            header = {"descr": "<i8", "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(stream, header)
            for vocabulary in arrays.vocabularies:
                with (vocabulary.folder / "counts").open("rb") as part:
                    shutil.copyfileobj(part, stream)

    def _manifest(
        self,
        arrays: Arrays,
        staged: Sequence[Finished],
        split_rule: str,
        *,
        positives: Mapping[Split, int],
        files: tuple[FileRecord, ...],
    ) -> Manifest:
        raw, notes = self.job.raw, [file.note for file in staged]
        return Manifest(
            dataset=raw.name,
            label=raw.label.name,
            columns=tuple(ColumnRecord(name=c.name, kind=str(c.kind)) for c in raw.used),
            tables=tuple(
                TableRecord(name=column.name, rows=vocabulary.table_rows, training_ids=vocabulary.training_ids)
                for column, vocabulary in zip(raw.categorical, arrays.vocabularies, strict=True)
            ),
            id_rule=_ID_RULES[self.job.settings.ids],
            dense_columns=tuple(column.name for column in raw.dense),
            dense_rule="integers: log(x - integer_minimum + 2), empty as 0; floats: as they are, empty as 0",
            integer_minimum=arrays.minimum,
            splits={
                str(split): SplitRecord(rows=rows, positives=positives[split], ctr=positives[split] / rows)
                for split, rows in arrays.splits.items()
            },
            split_rule=f"{split_rule}; input files in the order given",
            skipped_rows=sum(len(note["problems"]) for note in notes),
            settings=self.job.settings,
            schema_file=raw.schema_file,
            inputs=tuple(
                InputRecord(name=path.name, bytes=note["bytes"], sha256=note["sha256"], rows=note["rows"])
                for path, note in zip(self.inputs, notes, strict=True)
            ),
            files=files,
        )

    def _run(
        self,
        what: str,
        function: Callable[[Task, Advance], Result],
        tasks: Sequence[Task],
        *,
        totals: Sequence[int],
        each: bool = False,
    ) -> list[Result]:
        """Run a step; `each` task uses one core, so that several run at a time."""
        done = [0] * len(tasks)

        def advance(position: int, amount: int) -> None:
            done[position] = amount
            self.progress(what, sum(done), sum(totals))

        def one(position: int) -> Result:
            result = function(tasks[position], partial(advance, position))
            advance(position, totals[position])
            return result

        self.progress(what, 0, sum(totals))
        if self.cluster is not None:
            return self.cluster.run(function, tasks, lambda position: advance(position, totals[position]))
        if not each:  # not in a pool: a Ctrl-C must not wait for the task
            return list(map(one, range(len(tasks))))
        with ThreadPoolExecutor(threads()) as pool:
            return list(pool.map(one, range(len(tasks))))
