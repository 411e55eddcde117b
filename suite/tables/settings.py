"""Headings that tell settings and machines apart, and the caption of a table."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from suite.records.groups import RecordGroup
from suite.records.record import Cell, Record
from suite.tables.formatting import MISSING, binary_bytes, gigabytes, relative, score
from suite.tables.rows import baseline_repeat, one_line
from suite.tables.statistics import ENOUGH_RUNS

SIZES: Final = ("cache_ratio", "device_budget_bytes", "host_budget_bytes")
"""Fields of `Cell` that `cache` puts in words."""
CPU_CAVEAT: Final = (
    "On a CPU: host-resident systems stand outside any offload ranking; offload throughput is only claimed from a CUDA "
    "device, or of RAM over a file"
)
VIRTUAL_CAVEAT: Final = (
    "On a virtual device, which is host memory: answers, hit rates and bytes moved hold; GPU bytes are exact for "
    "torch's allocator, without workspaces; nothing is said of speed"
)
RANKS_CAVEAT: Final = (
    "Speed is that of gloo on one machine, whose ranks share its cores: it says nothing of GPUs, and is not ranked"
)


def headings(groups: Sequence[RecordGroup], *, sized: bool = True) -> list[str]:
    """A heading per group: dataset, data, optimizer, device and cache size, and digests where two would read alike.

    Where cells of several cache sizes meet in a table, `groups` has one of each table, and the size is left out.
    """
    texts = []
    for group in groups:
        cell = group.cell
        ranks = "" if cell.ranks is None else f", {cell.ranks} rank{'s' if cell.ranks > 1 else ''}"
        size = f", {cache(cell)}" if sized else ""
        kind = f"{cell.data} data, scale {cell.scale}, {cell.optimizer}{' in TF32' if cell.tf32 else ''}"
        texts.append(f"{group.title}: {kind}, on {group.key.device}{ranks}{size}")
    counts = Counter(texts)
    return [
        text
        if counts[text] == 1
        else f"{text} (setting {group.key.setting}, machine {group.key.machine}, {group.key.threads} threads)"
        for text, group in zip(texts, groups, strict=True)
    ]


def caption(groups: Sequence[RecordGroup], *more: str) -> str:
    """Machine, data, training, turns, noise floor, disturbances and code of a table, and what its device cannot say.

    Args:
        groups: Groups of one table; several differ in cache size alone, which is then left out.
        more: Further facts.
    """
    records = [record for one in groups for record in one.records]
    repeats = [row for one in groups if (row := baseline_repeat(one)) is not None and row.noise is not None]
    noisiest = sorted(repeats, key=lambda row: row.noise or 0.0)[-1:]
    floor = [f"noise floor: the baseline beside itself {relative(row.ratio, row.noise)}" for row in noisiest]
    facts = [*_setting(groups), *_taking_turns(records), *floor, *more, *_provenance(records)]
    said = caveat(groups[0])
    return "; ".join(facts) + "." + (f" {said}." if said else "")


def caveat(group: RecordGroup) -> str:
    """Limits of what a group's device shows; empty for a CUDA device, and for rows on a drive."""
    if group.on_virtual_device:
        return VIRTUAL_CAVEAT
    if not group.on_cpu or on_drive(group):
        return ""
    return RANKS_CAVEAT if on_ranks(group) else CPU_CAVEAT


def _setting(groups: Sequence[RecordGroup]) -> Iterator[str]:
    """Machine, data and training."""
    group, cell, environment = groups[0], groups[0].cell, groups[0].environment
    memory = f"{gigabytes(environment.memory_bytes)} GB of memory"
    if group.on_cpu:
        yield f"Measured on {group.key.device} (CPU only), {environment.threads} threads, {memory}"
    else:
        own = f", {gigabytes(environment.gpu_memory_bytes)} GB" if environment.gpu_memory_bytes else ""
        yield f"Measured on {group.key.device}{own}; host {environment.cpu}, {environment.cores} cores, {memory}"
    yield f"{cell.data} data" + (f" capped to about {cell.max_rows:,} rows" if cell.max_rows else "")
    measured = [record.measurement.quality for record in group.records if record.measurement is not None]
    best = [quality.best_auroc for quality in measured if quality.best_auroc is not None]
    if best and cell.data == "synthetic":  # of the model that planted the labels
        yield f"best possible AUROC {score(statistics.median(best))}"
    yield f"{cell.optimizer}, lr {cell.lr:g}, eps {cell.eps:g}, batch {cell.batch_size:,}, dim {cell.embedding_dim}"
    if cell.tf32:
        yield "dense layers in TF32"
    if len(groups) == 1:
        yield cache(cell)
    yield f"seed {cell.seed}"
    if cell.frequency_prefix != 1:
        yield f"frequencies from the first {100 * cell.frequency_prefix:g} % of training"
    yield f"{cell.train_steps:,} steps in a process of its own, then {cell.counted_steps:,} with traffic counted"


def _taking_turns(records: Sequence[Record]) -> Iterator[str]:
    """Number and place of systems' turns; nothing where none took any."""
    timed = [(record.cell, record.turns) for record in records if record.turns is not None]
    if not timed:
        return
    cell = records[0].cell
    lengths = sorted({(turns.steps, len(turns.system_s[0])) for _, turns in timed})
    taken = " or ".join(f"{turns} turns of {steps} step{'s' if steps > 1 else ''}" for steps, turns in lengths)
    usual, _ = Counter(turns.way for _, turns in timed).most_common(1)[0]
    apart = "".join(dict.fromkeys(f", {one.system}: {turns.way}" for one, turns in timed if turns.way != usual))
    rounds = len({one.round for one, _ in timed})  # one that was interrupted before its turns has no times
    blocks = "builds" if cell.host_budget_bytes is None else "blocks"  # tables on a drive are written once a round
    over = "over rounds" if rounds >= ENOUGH_RUNS else "over builds" if rounds > 1 else "within one run"
    taken = f"{cell.builds} {blocks} x {taken}, {usual}{apart}, intervals {over}"
    yield f"{rounds} round{'s' if rounds > 1 else ''} x {taken}"


def _provenance(records: Sequence[Record]) -> Iterator[str]:
    """Interference in the round in which others took most of the machine; packages, driver and code."""
    disturbed = [record for record in records if record.disturbed]
    if disturbed:
        rounds = [len({record.cell.round for record in some}) for some in (disturbed, records)]
        worst = max(disturbed, key=lambda record: (record.conditions and record.conditions.others_cpu_share) or 0.0)
        yield f"disturbed in {rounds[0]} of {rounds[1]} rounds: {one_line('; '.join(worst.disturbed))}"
    found = list(dict.fromkeys(map(_version, records)))
    # Numbers of different code side by side are no comparison unless the reader knows.
    yield ("of several versions, run them again to compare alike: " if len(found) > 1 else "") + " and ".join(found)


def _version(record: Record) -> str:
    environment = record.environment
    names = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
    packages = [f"{name} {environment.packages[name]}" for name in names if name in environment.packages]
    driver = [f"driver {environment.driver}"] if environment.driver and record.cell.device == "cuda" else []
    commit = f" of commit {environment.commit[:10]}" if environment.commit else ""
    changed = ", changed" if environment.dirty else ""
    return ", ".join([*packages, *driver, f"code {environment.code}{commit}{changed}"])


def cache(cell: Cell) -> str:
    """Size of caches: the share of the rows, or the bytes of the device, or of memory beside a drive."""
    if cell.host_budget_bytes is not None:
        device = f" with {binary_bytes(cell.device_budget_bytes)} as device" if cell.device_budget_bytes else ""
        return f"host budget {cache_size(cell)}{device}"
    if cell.device_budget_bytes is not None:
        return f"device budget {cache_size(cell)}"
    return "no cache size given" if cell.cache_ratio is None else f"cache ratio {cache_size(cell)}"


def cache_size(cell: Cell) -> str:
    """The size alone, as `5 %` or `64 MiB`."""
    budget = cell.host_budget_bytes or cell.device_budget_bytes
    if budget is not None:
        return binary_bytes(budget)
    return MISSING if cell.cache_ratio is None else f"{100 * cell.cache_ratio:g} %"


def sweeps(groups: Iterable[RecordGroup]) -> list[tuple[RecordGroup, ...]]:
    """Groups that differ in size alone together, the smallest first, shares before bytes; in order of their firsts."""
    found: defaultdict[tuple[object, ...], list[RecordGroup]] = defaultdict(list)
    for group in groups:
        key = group.key
        identity = group.cell.identity("system", "round", *SIZES), on_drive(group)
        found[key.workload_order, key.device, key.data, key.machine, key.threads, identity].append(group)
    return [tuple(sorted(members, key=lambda group: group.key.size)) for members in found.values()]


def on_drive(group: RecordGroup) -> bool:
    """Whether a group is of the contest of rows on a drive, which has tables of its own."""
    return group.cell.host_budget_bytes is not None


def on_ranks(group: RecordGroup) -> bool:
    """Whether a group's systems are shared by ranks; it has a table of its own."""
    return group.cell.ranks is not None
