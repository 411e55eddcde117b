"""What the words of `--systems` stand for."""

import itertools

from systems.registry import SYSTEMS, UnknownSystem, Variant, split_list

_ALSO = {"freq_cache": ("freq_cache[policy=lfu]", "freq_cache[look_ahead=4]")}  # by default it knows frequencies alone

_TUNED = {  # what fbgemm and torchrec have for speed; which of it is fastest depends on ids and link
    f"{library}_{name}": tuple(f"{library}_{name}[{setting}]" for setting in settings)
    for library in ("torchrec", "fbgemm")
    for name, settings in {
        "uvm": ("memory=managed",),
        "uvm_caching": ("memory=managed", "policy=lfu", "prefetch=on"),
    }.items()
}

ALL = tuple(entry for name in SYSTEMS for entry in (name, *_ALSO.get(name, ())))
"""What `all` stands for on a CPU: every system as it is by default, with further variants of it right behind."""

ALL_ON_CUDA = tuple(entry for name in SYSTEMS for entry in (name, *_ALSO.get(name, ()), *_TUNED.get(name, ())))
"""What `all` stands for on a CUDA device: the rivals as their authors would tune them, too."""

ALL_ON_RANKS = (
    *("full_gpu", "full_gpu[sharding=row_wise]"),
    *("freq_cache", "freq_cache[placement=rows]", "freq_cache[placement=misses]"),
    "torchrec_uvm_caching",
)
"""What `all` stands for there."""

GROUPS: dict[str, tuple[str, ...]] = {
    "all": ALL,
    "approximate": (
        "full_gpu",
        *("hashed", "hashed[compression=16]", "hashed[compression=64]"),
        *("qr", "qr[collisions=16]", "qr[collisions=64]"),
        *("tt_rec[rank=32]", "tt_rec", "tt_rec[rank=8]"),
        *("freq_cache[slow_rows=fp16]", "freq_cache[slow_rows=int8]"),
    ),
    "disk": (
        *("full_ram", "mapped_table", "rocksdb_table"),
        *(
            "freq_cache[tier=file]",
            "freq_cache[look_ahead=4,tier=file]",
            "freq_cache[look_ahead=4,policy=lfu,tier=file]",
        ),
    ),
}
"""What one word of `--systems` stands for, on a CPU; the exact one among the approximate systems is their bound."""


def parse_systems(text: str, *, every: tuple[str, ...] = ALL) -> list[Variant]:
    """The variants that `--systems` names, in order, each once; words of `GROUPS` stand for several, `all` for `every`.

    Raises:
        UnknownSystem: a name is unknown or malformed.
    """
    groups = {**GROUPS, "all": every}
    entries = itertools.chain.from_iterable(groups.get(part, (part,)) for part in split_list(text))
    variants = list(dict.fromkeys(Variant.parse(entry) for entry in entries))
    if not variants:
        raise UnknownSystem(f"no system named: give {' or '.join(GROUPS)}, or some of {', '.join(SYSTEMS)}")
    return variants
