"""What was run, in words: headings that tell settings and machines apart, and the facts above a table."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from suite.records.groups import Group
from suite.records.record import Cell, Record
from suite.tables.quantities import MISSING, binary_bytes, gigabytes, relative, score
from suite.tables.rows import merged_rows, one_line, trusted

CPU_CAVEAT = (
    "On a CPU: host-resident systems stand outside any offload ranking; offload throughput is only claimed from a CUDA "
    "device, or of RAM over a file"
)

VIRTUAL_CAVEAT = (
    "On a virtual device, which is host memory: answers, hit rates and bytes moved hold; GPU bytes are exact for "
    "torch's allocator, without workspaces; nothing is said of speed"
)


def headings(groups: Sequence[Group], *, sized: bool = True) -> list[str]:
    """A heading per group: dataset, data, optimizer, device and cache size, and digests where two would read alike.

    Where cells of several cache sizes meet in a table, `groups` has one of each table, and the size is left out.
    """
    texts = [_heading(group) + (f", {cache(group.cell)}" if sized else "") for group in groups]
    counts = Counter(texts)
    return [
        text if counts[text] == 1 else f"{text} ({_digests(group)})" for text, group in zip(texts, groups, strict=True)
    ]


def _heading(group: Group) -> str:
    cell = group.cell
    return f"{group.title}: {cell.data} data, scale {cell.scale}, {cell.optimizer}, on {group.key.device}{ranks(cell)}"


def ranks(cell: Cell) -> str:
    """How many ranks there are, to go on with: `, 2 ranks`; empty without ranks."""
    return "" if cell.ranks is None else f", {cell.ranks} rank{'s' if cell.ranks > 1 else ''}"


def facts(groups: Sequence[Group]) -> tuple[str, ...]:
    """Device, data, training, turns, noise and what disturbed them, above a table, a sentence each.

    Args:
        groups: Of one table; where there are several, they differ in cache size alone, which is then left out.
    """
    group = groups[0]
    cell = group.cell
    size = f", {cache(cell)}" if len(groups) == 1 else ""
    capped = f", tables capped to about {cell.max_rows:,} rows in all" if cell.max_rows else ""
    tf32 = ", dense layers in TF32" if cell.tf32 else ""
    records = [record for one in groups for record in one.records]
    best = f"; best possible AUROC {score(_best_auroc(group.records))}" if cell.data == "synthetic" else ""
    found = (
        f"Measured on: {_machine(group)}",
        f"Data: {group.title}, {cell.data}, scale {cell.scale}{capped}{best}",
        f"Training: {cell.optimizer}{tf32}, lr {cell.lr:g}, eps {cell.eps:g}, batch {cell.batch_size:,}, "
        f"dim {cell.embedding_dim}{size}, seed {cell.seed}{_frequencies(cell)}",
        *_seeds(group),
        *_taking_turns(records),
        *_noise(groups),
        *_disturbed(records),
    )
    if group.on_virtual_device:
        return (*found, VIRTUAL_CAVEAT)
    return (*found, CPU_CAVEAT) if group.on_cpu and not on_drive(group) else found


def details(groups: Sequence[Group]) -> tuple[str, ...]:
    """The rest: steps of a cell's own process, the optimum's horizon and versions; groups as for `facts`."""
    cell = groups[0].cell
    records = [record for one in groups for record in one.records]
    versions = dict.fromkeys(map(_version, records))
    return (
        f"Steps in a process of its own: {cell.train_steps:,}, then {cell.counted_steps:,} with traffic counted in the "
        "first round",
        *_horizon(records),
        # Numbers of different code side by side are no comparison unless the reader knows.
        f"Versions: {'several, run them again to compare alike: ' if len(versions) > 1 else ''}{'; '.join(versions)}",
    )


def _seeds(group: Group) -> Iterator[str]:
    """By how much rounds differ, whose seeds do, of the first system that has several; nothing where none has."""
    for system, runs in group.rounds_by_system.items():
        qualities = [measurement.quality for measurement in trusted(runs)]
        if len(qualities) > 1:
            auroc, accuracy = ([getattr(one, name) for one in qualities] for name in ("auroc", "accuracy"))
            yield (
                f"Rounds: {len(qualities)}, of a seed each; {system}'s AUROC went from {score(min(auroc))} to "
                f"{score(max(auroc))}, its accuracy from {score(min(accuracy))} to {score(max(accuracy))}"
            )
            return


def _taking_turns(records: Sequence[Record]) -> Iterator[str]:
    """How often and where systems took turns; nothing where none did."""
    timed = [(record.cell.system, record.turns) for record in records if record.turns is not None]
    if not timed:
        return
    cell = records[0].cell
    lengths = sorted({(turns.steps, len(turns.system_s[0])) for _, turns in timed})
    taken = " or ".join(f"{turns} turns of {steps} step{'s' if steps > 1 else ''}" for steps, turns in lengths)
    ways = Counter(turns.way for _, turns in timed)
    usual = ways.most_common(1)[0][0]
    others = dict.fromkeys(f"{system}: {turns.way}" for system, turns in timed if turns.way != usual)
    rounds = len({record.cell.round for record in records})
    blocks = "builds" if cell.host_budget_bytes is None else "blocks"  # tables on a drive are written once a round
    apart = f" ({'; '.join(others)})" if others else ""
    yield f"Turns: {rounds} round{'s' if rounds > 1 else ''} x {cell.builds} {blocks} x {taken}, {usual}{apart}"


def _noise(groups: Sequence[Group]) -> Iterator[str]:
    """The baseline beside itself, where that differs most; nothing where it did not run twice in several builds."""
    copies = [row for group in groups for row in merged_rows(group) if row.again and row.noise is not None]
    if copies:
        row = max(copies, key=lambda row: row.noise or 0.0)
        several = f", the widest of {len(copies)}" if len(copies) > 1 else ""
        yield f"Noise floor: the baseline beside itself {relative(row.relative, row.noise)}{several}"


def cache(cell: Cell) -> str:
    """How large caches may be: the share of the rows, or the bytes of the device, or of memory beside a drive."""
    if cell.host_budget_bytes is not None:
        return f"host budget {cache_size(cell)}"
    if cell.device_budget_bytes is not None:
        return f"device budget {cache_size(cell)}"
    return "no cache size given" if cell.cache_ratio is None else f"cache ratio {cache_size(cell)}"


def cache_size(cell: Cell) -> str:
    """The same without saying which of them it is."""
    budget = cell.host_budget_bytes or cell.device_budget_bytes
    if budget is not None:
        return binary_bytes(budget)
    return MISSING if cell.cache_ratio is None else f"{100 * cell.cache_ratio:g} %"


def _disturbed(records: Sequence[Record]) -> Iterator[str]:
    """What disturbed the turns, in the round in which others took most of the machine; nothing where nothing did."""
    disturbed = [record for record in records if record.disturbed]
    if disturbed:
        rounds = [len({record.cell.round for record in some}) for some in (disturbed, records)]
        where = f"in {rounds[0]} of {rounds[1]} rounds, " if rounds[1] > 1 else ""
        worst = max(disturbed, key=lambda record: (record.conditions and record.conditions.others_cpu_share) or 0.0)
        yield f"Disturbed: {where}{one_line('; '.join(worst.disturbed))}"


def _digests(group: Group) -> str:
    key = group.key
    return f"setting {key.setting}, machine {key.machine}, {key.threads} threads"


def _machine(group: Group) -> str:
    environment = group.environment
    host_memory = f"{gigabytes(environment.memory_bytes)} GB of memory"
    if group.on_cpu:
        return f"CPU only: {group.key.device}, {environment.threads} threads, {host_memory}"
    memory = f", {gigabytes(environment.gpu_memory_bytes)} GB" if environment.gpu_memory_bytes else ""
    return f"{group.key.device}{memory}; host {environment.cpu}, {environment.cores} cores, {host_memory}"


def _frequencies(cell: Cell) -> str:
    """Where frequencies come from, unless exactly from the whole training split."""
    if cell.frequency_prefix == 1:
        return ""
    return f", frequencies from the first {100 * cell.frequency_prefix:g} % of training"


def _best_auroc(records: Iterable[Record]) -> float | None:
    """AUROC of the model that planted the labels, median over records; None where it is not known."""
    measured = [record.measurement.quality for record in records if record.measurement is not None]
    known = [quality.best_auroc for quality in measured if quality.best_auroc is not None]
    return statistics.median(known) if known else None


def _horizon(records: Iterable[Record]) -> tuple[str, ...]:
    """What the optimum knows, and which steps it is of; nothing where none was simulated."""
    found = {(best.first_step, best.steps) for record in records if (best := record.optimum) is not None}
    return tuple(
        f"Optimum: Belady's rule knows the ids of all {first + steps:,} steps of a cell and of none after; the misses "
        f"and bytes of the last {steps:,} count"
        for first, steps in sorted(found)
    )


def _version(record: Record) -> str:
    """Python, packages, driver and code that a record comes from."""
    environment = record.environment
    names = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
    packages = [f"{name} {environment.packages[name]}" for name in names if name in environment.packages]
    driver = [f"driver {environment.driver}"] if environment.driver and record.cell.device == "cuda" else []
    commit = (
        f" (commit {environment.commit[:10]}{', changed' if environment.dirty else ''})" if environment.commit else ""
    )
    return ", ".join([f"Python {environment.python}", *packages, *driver, f"code {environment.code}{commit}"])


_SIZES = ("cache_ratio", "device_budget_bytes", "host_budget_bytes")


def sweeps(groups: Iterable[Group]) -> list[tuple[Group, ...]]:
    """Groups that differ in size alone together, the smallest first, shares before bytes; in order of their firsts."""
    found: defaultdict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        key = group.key
        identity = group.cell.identity("system", "round", *_SIZES), on_drive(group)
        found[key.workload_order, key.device, key.data, key.machine, key.threads, identity].append(group)
    return [tuple(sorted(members, key=lambda group: group.key.size)) for members in found.values()]


def on_drive(group: Group) -> bool:
    """Whether a group is of the contest of rows on a drive, which has tables of its own."""
    return group.cell.host_budget_bytes is not None
