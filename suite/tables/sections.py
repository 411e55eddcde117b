"""What a published table says, in words and formatted numbers, before it becomes Markdown or a terminal's text.

One `Section` per comparison group; every format prints the same sections, so they cannot disagree.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.quantities import MISSING, amount, duration, gigabytes, megabytes
from suite.tables.rows import Row, merged_rows, one_line
from suite.tables.statistics import Standing, rank

CPU_CAVEAT = (
    "host-resident systems stand outside any offload ranking; offload throughput is only claimed from a CUDA device, "
    "or of RAM over a file"
)
LEGEND = (
    "GB = 1e9 bytes and MB = 1e6 bytes; it = iteration, one batch; n/a = does not exist or is not known. "
    "it/s and epoch time: median over rounds; ~ before an epoch time: extrapolated from throughput. "
    "GPU GB: torch's peaks; CPU GB: peak resident memory of the process. "
    "vs full_gpu: samples/s relative to the all-on-device baseline, paired by round, with a 95 % interval. "
    "Hit rate: share of a batch's distinct rows that were on the device before anything was fetched. "
    "Optimal misses and minimum bytes: of Belady's rule, simulated on the same steps with as many slots. "
    "Predicted: by a cost model calibrated before the cells ran (python -m suite advise); its error is that of the "
    "time of a step, positive where the model was too slow. "
    "Rows, state, index and staging MB: device memory by purpose, by the system's own account. "
    "Verified: trained beside the reference before timing; bitwise, or the largest difference of any loss, row or "
    "(relative to its size) optimizer state."
)


@dataclass(frozen=True)
class Column:
    """A column of the tables.

    Attributes:
        header: Words between which a narrow terminal may break.
        show: A row's cell.
        explains: Stands behind the paper's columns, to explain them.
        text: Left-aligned.
    """

    header: str
    show: Callable[[Row], str]
    explains: bool = False
    text: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A comparison group, ready to print.

    Attributes:
        heading: Dataset, data, optimizer and device.
        facts: What holds for the whole table, by label.
        caveat: What a reader must not conclude from it; empty on a CUDA device.
        rows: Cells by row, in order of `COLUMNS`.
        failures: System and why it has no `ok`.
        notes: System and remark.
        hits: System and its hit rates, by distinct id and by lookup, with numerators and denominators.
        ranking_title: Who takes part in the ranking.
        ranking: Places of the systems by throughput, in words; empty where there is no ranking.
        published: Cells by row, in order of `PUBLISHED_HEADERS`.
        published_note: What to know of them; empty without published rows.
    """

    heading: str
    facts: tuple[tuple[str, str], ...]
    caveat: str
    rows: tuple[tuple[str, ...], ...]
    failures: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, str], ...]
    hits: tuple[tuple[str, str], ...]
    ranking_title: str
    ranking: tuple[str, ...]
    published: tuple[tuple[str, ...], ...]
    published_note: str


def section(group: Group) -> Section:
    """Everything a table of this group says."""
    rows = merged_rows(group)
    published = published_rows(group.cell.workload)
    return Section(
        heading=heading(group),
        facts=facts(group),
        caveat=CPU_CAVEAT if group.on_cpu else "",
        rows=tuple(tuple(column.show(row) for column in COLUMNS) for row in rows),
        failures=tuple((row.system, failure(row)) for row in rows if row.status is not Status.OK),
        notes=tuple((row.system, note) for row in rows for note in row.notes),
        hits=tuple((row.system, _hits(row)) for row in rows if row.hit_rate is not None),
        ranking_title=_ranking_title(group),
        ranking=tuple(_place(standing) for standing in rank(group.records)),
        published=tuple(_published_cells(row) for row in published),
        published_note=_published_note(group, published),
    )


def heading(group: Group) -> str:
    """Dataset, data, optimizer and device: what tells this table from the others."""
    cell = group.cell
    return f"{group.title}: {cell.data} data, scale {cell.scale}, {cell.optimizer}, on {group.key.device}"


def facts(group: Group) -> tuple[tuple[str, str], ...]:
    """Device, data, training, steps and versions of a group, by label."""
    cell, environment = group.cell, group.environment
    if group.on_cpu:
        device = f"CPU only: {group.key.device}, {environment.threads} threads"
    else:
        memory = f", {gigabytes(environment.gpu_memory_bytes)} GB" if environment.gpu_memory_bytes else ""
        device = f"{group.key.device}{memory}; host {environment.cpu}, {environment.cores} cores"
    capped = f", tables capped to about {cell.max_rows:,} rows in all" if cell.max_rows else ""
    return (
        ("Measured on", f"{device}, {gigabytes(environment.memory_bytes)} GB of memory"),
        ("Data", f"{group.title}, {cell.data}, scale {cell.scale}{capped}{_best_auroc(group)}"),
        (
            "Training",
            f"{cell.optimizer}, lr {cell.lr:g}, eps {cell.eps:g}, batch {cell.batch_size:,}, "
            f"dim {cell.embedding_dim}, {budget(group)}, seed {cell.seed}{frequencies(group)}",
        ),
        (
            "Steps",
            f"{cell.warmup_steps} warm-up, {cell.windows} x {cell.window_steps} timed, {cell.counted_steps} counted; "
            f"rounds: {max(len(runs) for runs in group.rounds_by_system.values())}",
        ),
        *_predictions(group),
        ("Versions", _versions(group)),
    )


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.5f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.0f} %"


def _signed(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.0f} %"


def _epoch(row: Row) -> str:
    return ("" if row.epoch_measured or row.epoch_s is None else "~") + duration(row.epoch_s)


def _relative(row: Row) -> str:
    if row.ratio is None:
        return MISSING
    if row.ratio_low is None and row.ratio == 1:
        return "1"
    interval = f"{amount(row.ratio_low)}, {amount(row.ratio_high)}" if row.ratio_low is not None else MISSING
    return f"{amount(row.ratio)} [{interval}]"


COLUMNS = (
    Column("system", lambda row: row.system, text=True),
    Column("AUROC", lambda row: _share(row.auroc)),
    Column("accuracy", lambda row: _share(row.accuracy)),
    Column("it/s", lambda row: amount(row.steps_per_s)),
    Column("epoch time", _epoch),
    Column("GPU GB allocated", lambda row: gigabytes(row.device_allocated_bytes)),
    Column("GPU GB reserved", lambda row: gigabytes(row.device_reserved_bytes)),
    Column("CPU GB", lambda row: gigabytes(row.host_peak_rss_bytes)),
    Column("vs full_gpu", _relative, explains=True),
    Column("hit rate", lambda row: MISSING if row.hit_rate is None else f"{100 * row.hit_rate:.2f} %", explains=True),
    Column("MB fetched per it", lambda row: megabytes(row.fetched_bytes_per_step), explains=True),
    Column("MB written back per it", lambda row: megabytes(row.written_back_bytes_per_step), explains=True),
    Column("misses, % of optimal", lambda row: _percent(row.misses_over_optimum), explains=True),
    Column("bytes over minimum", lambda row: amount(row.bytes_over_minimum), explains=True),
    Column("rows MB", lambda row: megabytes(row.device_rows_bytes), explains=True),
    Column("state MB", lambda row: megabytes(row.device_state_bytes), explains=True),
    Column("index MB", lambda row: megabytes(row.device_index_bytes), explains=True),
    Column("staging MB", lambda row: megabytes(row.device_staging_bytes), explains=True),
    Column("predicted it/s", lambda row: amount(row.predicted_steps_per_s), explains=True),
    Column("error of prediction", lambda row: _signed(row.prediction_error), explains=True),
    Column("verified", lambda row: row.verified or MISSING, explains=True, text=True),
    Column("placement", lambda row: row.placement or MISSING, explains=True, text=True),
    Column("status", lambda row: row.status.value, explains=True, text=True),
)

PUBLISHED_HEADERS = (*(column.header for column in COLUMNS if not column.explains), "status", "hardware")


def _published_cells(row: PublishedRow) -> tuple[str, ...]:
    return (
        row.system,
        _share(row.auroc),
        _share(row.accuracy),
        f"{row.steps_per_s:g}",
        # The source gives whole seconds below an hour.
        duration(row.epoch_s) if row.epoch_s >= 60 else f"{row.epoch_s:g}s",
        f"{row.gpu_allocated_gb:g}",
        f"{row.gpu_reserved_gb:g}",
        f"{row.cpu_gb:g}",
        "published",
        row.hardware,
    )


def _published_note(group: Group, rows: tuple[PublishedRow, ...]) -> str:
    if not rows:
        return ""
    synthetic = " Labels of synthetic data are not those of the dataset: do not compare AUROC and accuracy with ours."
    return (
        f"Source: {rows[0].source}; cache ratio {100 * rows[0].cache_ratio:g} %, batch {rows[0].batch_size:,}. "
        f"{NOTE}{synthetic if group.cell.data == 'synthetic' else ''}"
    )


def _hits(row: Row) -> str:
    parts = [
        f"{total - missed:,} of {total:,} {what} ({100 * (1 - missed / total):.2f} %)"
        for total, missed, what in (
            (row.unique_ids, row.unique_misses, "distinct ids"),
            (row.lookups, row.lookup_misses, "lookups"),
        )
        if total and missed is not None
    ]
    return "; ".join(parts)


def _ranking_title(group: Group) -> str:
    baseline = "" if group.on_cpu else " and the all-on-device baseline"
    return (
        f"Ranking by throughput, among verified systems that offload{baseline} (= too close to call: the 95 % interval "
        "of paired rounds spans 1, or there is one round only)"
    )


def _place(standing: Standing) -> str:
    return (
        f"{standing.place}{'=' if standing.tied else '.'} {standing.system}: {amount(standing.samples_per_s)} samples/s"
    )


def failure(row: Row) -> str:
    """How a system ended that is not ok, and why."""
    where = f" in phase {row.phase}" if row.phase else ""
    return f"{row.status.value}{where}: {one_line(row.reason) or 'no reason was recorded'}"


def budget(group: Group) -> str:
    """The cache ratio or the device budget of a group."""
    cell = group.cell
    parts = []
    if cell.cache_ratio is not None:
        parts.append(f"cache ratio {100 * cell.cache_ratio:g} %")
    if cell.device_budget_bytes is not None:
        parts.append(f"device budget {gigabytes(cell.device_budget_bytes)} GB")
    return ", ".join(parts) or "no cache ratio or device budget"


def frequencies(group: Group) -> str:
    """Where frequencies come from, unless exactly from the whole training split."""
    cell = group.cell
    sketch = cell.frequency_sketch_bytes
    if cell.frequency_prefix == 1 and sketch is None:
        return ""
    how = "" if sketch is None else f" by a sketch of {sketch / 1e6:g} MB"
    return f", frequencies{how} from the first {100 * cell.frequency_prefix:g} % of training"


def _best_auroc(group: Group) -> str:
    if group.cell.data != "synthetic":
        return ""
    known = [
        record.measurement.quality.best_auroc
        for record in group.records
        if record.measurement is not None and record.measurement.quality.best_auroc is not None
    ]
    return f"; best possible AUROC {_share(statistics.median(known) if known else None)}"


def _predictions(group: Group) -> tuple[tuple[str, str], ...]:
    errors = [abs(row.prediction_error) for row in merged_rows(group) if row.prediction_error is not None]
    if not errors:
        return ()
    cells = f"{len(errors)} system{'s' if len(errors) > 1 else ''}"
    return (("Predicted", f"median absolute error {100 * statistics.median(errors):.1f} % over {cells}"),)


def _versions(group: Group) -> str:
    seen = dict.fromkeys(version(record) for record in group.records)
    # Numbers of different code side by side are no comparison unless the reader knows.
    several = "several, run them again to compare alike: " if len(seen) > 1 else ""
    return several + "; ".join(seen)


def version(record: Record) -> str:
    """Python, packages, driver and code that a record comes from."""
    environment = record.environment
    names = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
    packages = [f"{name} {environment.packages[name]}" for name in names if name in environment.packages]
    driver = [f"driver {environment.driver}"] if environment.driver and record.cell.device == "cuda" else []
    commit = (
        f" (commit {environment.commit[:10]}{', changed' if environment.dirty else ''})" if environment.commit else ""
    )
    return ", ".join([f"Python {environment.python}", *packages, *driver, f"code {environment.code}{commit}"])
