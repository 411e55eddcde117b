"""Systems that each word of `--systems` selects."""

import itertools

from systems.registry import SYSTEMS, UnknownSystem, Variant, split_list

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
"""Systems by word of `--systems`, on a CPU; `full_gpu` among the approximate systems is the exact upper bound."""


def parse_systems(text: str, *, every: tuple[str, ...] = ALL) -> list[Variant]:
    """Parse `--systems` into variants, in order, each once; words of `GROUPS` select several, `all` selects `every`.

    Raises:
        UnknownSystem: a name is unknown or malformed.
    """
    groups = {**GROUPS, "all": every}
    entries = itertools.chain.from_iterable(groups.get(part, (part,)) for part in split_list(text))
    variants = list(dict.fromkeys(Variant.parse(entry) for entry in entries))
    if not variants:
        raise UnknownSystem(f"no system named: give {' or '.join(GROUPS)}, or some of {', '.join(SYSTEMS)}")
    return variants
