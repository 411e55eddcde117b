"""What the page says in sentences: where its numbers come from, what ran, what did not, and what nobody measured."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from suite.records.groups import Group, GroupKey
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.status import Status
from suite.tables.approximate import approximate_block
from suite.tables.disk_blocks import disk_verdict
from suite.tables.ranks import on_ranks
from suite.tables.rows import failure
from suite.tables.settings import VIRTUAL_CAVEAT, cache, headings, on_drive, ranks, sweeps
from suite.tables.verdict import verdict


def facets(groups: Sequence[Group]) -> dict[GroupKey, dict[str, str]]:
    """By group, what the page names and filters it by; with digests where two settings or machines read alike."""
    settings = {(group.cell.workload, _setting(group.cell), group.cell.setting) for group in groups}
    machines = {(device_words(group), group.key.machine, group.key.threads) for group in groups}
    alike = Counter([*((workload, words) for workload, words, _ in settings), *(words for words, *_ in machines)])
    found = {}
    for group in groups:
        setting, device, key = _setting(group.cell), device_words(group), group.key
        if alike[group.cell.workload, setting] > 1:
            setting += f", setting {group.cell.setting}"
        if alike[device] > 1:
            device += f", machine {key.machine}, {key.threads} threads"
        found[key] = {
            "dataset": group.title, "setting": setting, "optimizer": group.cell.optimizer, "device": device,
        }  # fmt: skip
    return found


def device_words(group: Group) -> str:
    """What lookups were computed on."""
    return f"CPU: {group.key.device}" if group.on_cpu else group.key.device


def _setting(cell: Cell) -> str:
    parts = [f"{cell.data}, {cell.scale}{ranks(cell)}{', TF32' if cell.tf32 else ''}"]
    if cell.frequency_prefix != 1:
        parts.append(f"frequencies from the first {100 * cell.frequency_prefix:g} %")
    return ", ".join([*parts, cache(cell)])


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A system of a comparison that did not end ok: in which rounds, how and why."""

    system: str
    where: str
    rounds: tuple[int, ...]
    how: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from a comparison; `others` has the same of the other cache sizes."""

    heading: str
    sentences: tuple[str, ...]
    others: tuple["Verdict", ...] = ()


def verdicts(groups: tuple[Group, ...]) -> tuple[Verdict, ...]:
    """A verdict per sweep of cache sizes, in order of the groups; rows on a drive have one for all.

    Ranks have none, and a virtual device has none.
    """
    heads = dict(zip((group.key for group in groups), headings(groups), strict=True))
    found = []
    families = [sweep for sweep in sweeps(groups) if not on_ranks(sweep[0]) and not sweep[0].on_virtual_device]
    for sweep, heading in zip(families, headings([one[0] for one in families], sized=False), strict=True):
        if on_drive(sweep[0]):
            found.append(Verdict(heading=f"{heading}, rows on a drive", sentences=disk_verdict(sweep)))
            continue
        scale = SCALES.get(sweep[0].cell.scale)
        usual = next((one for one in sweep if scale and one.cell.cache_ratio == scale.cache_ratio), sweep[-1])
        # of approximate systems alone their own table speaks
        said = {group.key: verdict(group) or approximate_block(group)[0].verdict for group in sweep}
        told = {key: Verdict(heading=heads[key], sentences=sentences) for key, sentences in said.items()}
        first = told.pop(usual.key)
        found.append(replace(first, others=tuple(told.values())))
    return tuple(found)


def failures(groups: tuple[Group, ...]) -> tuple[Failure, ...]:
    """Every cell that has no `ok`, rounds that ended alike together."""
    named = facets(groups)
    rounds: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for group in groups:
        where = ", ".join(named[group.key].values())
        for runs in group.rounds_by_system.values():
            for run in runs:
                if run.status is not Status.OK:
                    rounds[run.cell.system, where, failure(run)].append(run.cell.round + 1)
    return tuple(
        Failure(system=system, where=where, rounds=tuple(numbers), how=how)
        for (system, where, how), numbers in rounds.items()
    )


def device_statement(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """What the devices allow to be claimed; nothing where everything ran on CUDA devices, or beside a drive.

    A page of a virtual device is of nothing else.
    """
    if any(group.on_virtual_device for group in groups):
        return (f"{VIRTUAL_CAVEAT}.",)
    raced = [group for group in groups if not on_drive(group)]
    on_cpu = [group for group in raced if group.on_cpu]
    if not on_cpu:
        return ()
    number = f"{len(on_cpu)} of {len(raced)} comparisons {'was' if len(on_cpu) == 1 else 'were'}"
    who = "Everything on this page was" if len(on_cpu) == len(raced) else number
    return (
        f"{who} measured on a CPU. Offload throughput is not claimed from that: fbgemm and torchrec have no UVM "
        "there, so their tables are host-resident and stand outside any offload ranking.",
        "Numerics, hit rates, bytes moved and bytes by tier hold on any device.",
    )
