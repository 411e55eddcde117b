"""The systems by name, and those that each word of `--systems` selects. Adding one: a module, and a line below."""

from __future__ import annotations

import difflib
import importlib
import itertools
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # naming systems must not cost an import of torch
    from systems.contract import EmbeddingSystem

SYSTEMS: dict[str, str] = {
    "reference": "systems.reference:ReferenceSystem",
    "full_gpu": "systems.fbgemm.tbe_system:FullGPU",
    "freq_cache": "systems.freq_cache:FreqCache",
    "colossalai_cache": "systems.colossalai_cache:ColossalAICache",
    "torchrec_uvm": "systems.torchrec_uvm:TorchrecUVM",
    "torchrec_uvm_caching": "systems.torchrec_uvm:TorchrecUVMCaching",
    "fbgemm_uvm": "systems.fbgemm.uvm:FbgemmUVM",
    "fbgemm_uvm_caching": "systems.fbgemm.uvm:FbgemmUVMCaching",
    "cpu_embeddings": "systems.fbgemm.tbe_system:CPUEmbeddings",
    "hot_split": "systems.hot_split:HotSplit",
}
"""`module:class` by name, in the order of tables."""

APPROXIMATE: dict[str, str] = {
    "hashed": "systems.approximate.hashed:Hashed",
    "qr": "systems.approximate.qr:QR",
    "tt_rec": "systems.approximate.tt_rec:TTRec",
}
"""Systems that keep fewer numbers than their tables have: outside `all`, never ranked by speed with the others."""

DISK: dict[str, str] = {
    "full_ram": "systems.fbgemm.tbe_system:FullRAM",
    "mapped_table": "systems.mapped_table:MappedTable",
    "rocksdb_table": "systems.rocksdb_table:RocksDBTable",
}
"""Systems of `--tier disk` with rows on a drive, and `full_ram`, all rows in RAM, as their upper bound."""

ON_RANKS: dict[str, str] = {
    "full_gpu": "systems.sharded.by_torchrec:ShardedFullGPU",
    "freq_cache": "systems.sharded.collection:ShardedFreqCache",
    "torchrec_uvm_caching": "systems.sharded.by_torchrec:ShardedTorchrecUVMCaching",
}
"""`module:class` by name with `--ranks`: systems whose rows are sharded over several processes."""

CONTROLS: dict[str, str] = {"no_embeddings": "systems.no_embeddings:NoEmbeddings"}
"""Controls, not systems: run by name, outside `all`."""

_TARGETS = ChainMap(SYSTEMS, APPROXIMATE, DISK, CONTROLS)

_VARIANT = re.compile(r"^(?P<name>[\w.]+(?::\w+)?)(?:\[(?P<parameters>[^\[\]]*)\])?$")


class UnknownSystem(ValueError):
    """No system of that name, or no such variant; the message names the near ones."""


@dataclass(frozen=True)
class Variant:
    """A system and the values of its parameters, e.g. `fbgemm_uvm_caching[policy=lfu]`.

    `name` is a registered name or a `module:class` outside this package.
    """

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        inner = ",".join(f"{key}={value}" for key, value in self.parameters)
        return f"{self.name}[{inner}]" if inner else self.name

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read `name` or `name[key=value,...]` without importing the system.

        Raises:
            UnknownSystem: malformed, or no system of that name.
        """
        variant = read_variant(text.strip(), known=list(_TARGETS), what="system")
        return cls(variant.name, tuple(sorted(variant.parameters)))


def read_variant(text: str, *, known: Sequence[str], what: str) -> Variant:
    """Read `name` or `name[key=value,...]`, parameters in their order.

    A `module:class` is accepted whether it is `known` or not. `what` is the noun for such names in messages.

    Raises:
        UnknownSystem: malformed, or an unknown name.
    """
    match = _VARIANT.match(text)
    if match is None:
        raise UnknownSystem(f"'{text}' is not a {what}: write name or name[parameter=value,...]")
    name = match["name"]
    if ":" not in name and name not in known:
        raise UnknownSystem(f"unknown {what} '{name}': {near(name, known) or 'known: ' + ', '.join(known)}")
    pairs = [part.partition("=") for part in (match["parameters"] or "").split(",") if part.strip()]
    if any(not sign for _, sign, _ in pairs):
        raise UnknownSystem(f"'{text}': write parameters as parameter=value")
    parameters = {key.strip(): value.strip() for key, _, value in pairs}
    if len(parameters) < len(pairs):
        raise UnknownSystem(f"'{text}' gives a parameter twice")
    return Variant(name, tuple(parameters.items()))


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean this or that?`, or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f"did you mean {' or '.join(found)}?" if found else ""


def check_parameters(variant: Variant, variants: Mapping[str, Sequence[str]]) -> None:
    """Check the parameters of a variant against the values that its class allows, by parameter name.

    Raises:
        UnknownSystem: there is no such parameter or value.
    """
    for key, value in variant.parameters:
        allowed = variants.get(key)
        if allowed is None:
            takes = ", ".join(variants) or "none"
            raise UnknownSystem(f"{variant.name} has no parameter '{key}'; it takes: {takes}")
        if value not in allowed:
            raise UnknownSystem(f"{variant}: '{key}' is one of {', '.join(allowed)}")


def split_list(text: str) -> list[str]:
    """Split a command-line list at commas outside brackets: `a,b[x=1,y=2]` is two entries."""
    return [part for part in (p.strip() for p in re.split(r",(?![^\[]*\])", text)) if part]


def load(variant: Variant, *, on_ranks: bool = False) -> type[EmbeddingSystem]:
    """Import a variant's class; with `on_ranks` its sharded form.

    Raises:
        UnknownSystem: the module has no such class, the class no such parameter or value, or no sharded form exists.
        ImportError: the module or one of its dependencies is not installed.
    """
    from systems.contract import EmbeddingSystem

    if on_ranks and ":" not in variant.name and variant.name not in ON_RANKS:
        raise UnknownSystem(f"{variant.name} cannot be spread over ranks: with --ranks give {', '.join(ON_RANKS)}")
    target = (ON_RANKS if on_ranks else _TARGETS).get(variant.name, variant.name)
    module_name, _, class_name = target.partition(":")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, EmbeddingSystem)):
        raise UnknownSystem(f"{target} is not an EmbeddingSystem")
    check_parameters(variant, found.variants)
    return found


def resolved_parameters(variant: Variant, system: type[EmbeddingSystem]) -> dict[str, str]:
    """All parameters of a variant, defaults filled in."""
    return {**{key: values[0] for key, values in system.variants.items()}, **dict(variant.parameters)}


_ALSO = {"freq_cache": ("freq_cache[policy=lfu]", "freq_cache[look_ahead=4]")}  # the default only uses frequencies

_TUNED = {  # fbgemm's and torchrec's settings for speed; which one is fastest depends on ids and link
    f"{library}_{name}": tuple(f"{library}_{name}[{setting}]" for setting in settings)
    for library in ("torchrec", "fbgemm")
    for name, settings in {
        "uvm": ("memory=managed",),
        "uvm_caching": ("memory=managed", "policy=lfu", "prefetch=on"),
    }.items()
}

ALL = tuple(entry for name in SYSTEMS for entry in (name, *_ALSO.get(name, ())))
"""`all` on a CPU: every system with its defaults, followed by further variants of it."""

REPEATS_ON_CPU = ("cpu_embeddings", "fbgemm_uvm", "fbgemm_uvm_caching", "torchrec_uvm_caching")
"""On a CPU these run another system's kernel on the same memory, so that a row of theirs says nothing new."""

DISTINCT = tuple(entry for entry in ALL if entry not in REPEATS_ON_CPU)
"""`distinct`, the default, on a CPU; elsewhere it is `all`."""

ALL_ON_CUDA = tuple(entry for name in SYSTEMS for entry in (name, *_ALSO.get(name, ()), *_TUNED.get(name, ())))
"""`all` on a CUDA device: `ALL`, and fbgemm's and torchrec's systems as their authors would tune them."""

ALL_ON_RANKS = (
    *("full_gpu", "full_gpu[sharding=row_wise]"),
    *("freq_cache", "freq_cache[placement=rows]", "freq_cache[placement=misses]"),
    "torchrec_uvm_caching",
)
"""`all` with `--ranks`."""

GROUPS: dict[str, tuple[str, ...]] = {
    "all": ALL,
    "distinct": DISTINCT,
    "approximate": (
        "full_gpu",
        *("hashed", "hashed[compression=16]", "hashed[compression=64]"),
        *("qr", "qr[collisions=16]", "qr[collisions=64]"),
        *("tt_rec[rank=32]", "tt_rec", "tt_rec[rank=8]"),
        *("freq_cache[slow_rows=fp16]", "freq_cache[slow_rows=int8]"),
    ),
    "disk": (
        *DISK,
        *(f"freq_cache[{choices}tier=file]" for choices in ("", "look_ahead=4,", "look_ahead=4,policy=lfu,")),
    ),
}
"""Systems by word of `--systems`, on a CPU; `full_gpu` among the approximate systems is the exact upper bound."""

TWO_LEVELS = "freq_cache[levels=2,look_ahead=4,tier=file]"
"""Beside three levels, which `--tier disk` has with a `--device-budget`: slots of all memory."""


def parse_systems(text: str, *, every: tuple[str, ...] = ALL) -> list[Variant]:
    """Parse `--systems` into variants, in order, each once; words of `GROUPS` select several.

    `all` selects `every`, as does `distinct` where that is not `ALL`.

    Raises:
        UnknownSystem: a name is unknown or malformed.
    """
    groups = {**GROUPS, "all": every, "distinct": DISTINCT if every is ALL else every}
    entries = itertools.chain.from_iterable(groups.get(part, (part,)) for part in split_list(text))
    variants = list(dict.fromkeys(Variant.parse(entry) for entry in entries))
    if not variants:
        raise UnknownSystem(f"no system named: give {' or '.join(GROUPS)}, or some of {', '.join(SYSTEMS)}")
    return variants
