"""Raw click logs to arrays that training maps into memory: stage, count, rank or hash, encode, publish.

Every step is a list of independent tasks: one per raw file, or one per table. A finished task leaves a folder whose
name says what it depends on, so that a killed run goes on where it stopped, and a cluster can share the work.
"""

import errno
import re
from collections.abc import Sequence
from pathlib import Path

from workloads.errors import DataError
from workloads.manifest import DATA_FILES, MANIFEST, TEMPORARY, FileRecord, IdRule, Manifest, Settings
from workloads.prepare.build import Build
from workloads.prepare.cluster import OnCluster, Progress
from workloads.prepare.columns import FORMATS, RawFormat
from workloads.prepare.vocabulary import MOST_ROWS, hashed_rows
from workloads.prepare.workspace import Job, Memory, work_folder


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
    progress: Progress = lambda _step, _done, _total, _rows: None,
) -> Manifest:
    """Write `out/dataset` from raw files; nothing there is replaced unless all of it succeeds.

    Steps that were finished before a run failed or was killed stay on disk next to the output; the next run uses them.

    Args:
        dataset: A name in `FORMATS`, or a format of the user's own (`own_schema.read_schema`).
        inputs: Raw files in time order.
        out: Directory that gets a directory of the dataset's name.
        settings: How ids become rows, and bad rows; default: ranked, every id kept, no bad row allowed.
        overwrite: Replace an earlier output, at the very end.
        restart: Forget what an earlier run has finished.
        memory: Bound on resident memory, of this process or of each worker of the cluster.
        scheduler: Address of a Dask scheduler whose workers do the work; None for this process.
        schema_file: Of a format of the user's own.
        progress: Called while it works.

    Raises:
        DataError: a wrong argument, bad input, or an output that cannot be written; the message says what to do.
    """
    raw = FORMATS.get(dataset) if isinstance(dataset, str) else dataset
    if raw is None:
        raise DataError(f"unknown dataset '{dataset}' (known: {', '.join(FORMATS)})")
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
            job = Job(raw, settings, memory, work)
            manifest, made = Build(job, tuple(inputs), cluster, schema_file, progress).run()
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
