"""What the drift board says of a stream in one sentence, from its numbers alone."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KNOWING = ("static", "static, first tenth", "fae", "colossalai dataset", "colossalai lfu")
"""Policies that are given frequencies; all others but the optimum learn by themselves."""
OPTIMUM = "belady"
COLUMNS = ("static", "static, first tenth", "lfu", "lru", "fbgemm lru", "fbgemm lfu", OPTIMUM)
"""Policies of the page's table."""
SAME = 0.02
"""Misses are as many if they differ by less."""
NEAR = 0.05
"""A policy keeps up with another as long as it misses at most so much more."""

Stream = Mapping[str, Any]


def counted(stream: Stream, name: str) -> np.ndarray:
    """Misses of a policy in each stretch of batches after those that fill the cache."""
    points = len(stream["misses"][OPTIMUM])
    return np.array(stream["misses"][name][-points:])


def levels(stream: Stream) -> dict[str, float]:
    """Misses per batch by policy, the fewest first."""
    means = {name: float(counted(stream, name).mean()) for name in stream["misses"]}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def learners(stream: Stream) -> list[str]:
    """The policies that learn by themselves, the best first."""
    return [name for name in levels(stream) if name not in KNOWING and name != OPTIMUM]


def ageing(stream: Stream, name: str) -> float:
    """By how much misses, relative to the optimum's, are higher in the last third than in the first; 0: not at all."""
    relative = counted(stream, name) / counted(stream, OPTIMUM)
    third = len(relative) // 3
    return float(relative[-third:].mean() / relative[:third].mean() - 1)


def batches_to_reach(stream: Stream, name: str, misses: float, bin_batches: int) -> int | None:
    """Batches from an empty cache until a policy misses so few, or hardly more; None: it never does."""
    reached = np.flatnonzero(np.array(stream["misses"][name]) <= (1 + NEAR) * misses)
    return (int(reached[0]) + 1) * bin_batches if reached.size else None


def verdict(stream: Stream, bin_batches: int) -> str:
    """Who misses least, what frequencies known beforehand are worth, whose counts grow old, and who learns how fast."""
    level, best = levels(stream), learners(stream)[0]
    parts = [f"`{best}` misses least of what learns by itself, {level[best] / level[OPTIMUM]:.2f} times the optimum"]
    if best != "lfu":
        parts[0] += f", and {_compared(level[best], level['lfu'])} `lfu`"
    parts.append(f"static frequencies miss {_compared(level['static'], level[best])} it")
    parts[-1] += f", those of the first tenth {_compared(level['static, first tenth'], level[best])} it"
    old = {name: ageing(stream, name) for name in level if name != OPTIMUM}
    grown = [f"`{name}` by {100 * share:.0f} %" for name, share in old.items() if share > NEAR]
    parts.append(
        "against the optimum " + (_listed(grown) + " lose while it runs" if grown else "none loses as it runs")
    )
    times = {name: batches_to_reach(stream, name, level[best], bin_batches) for name in learners(stream)}
    first = min((name for name in times if times[name]), key=lambda name: times[name] or 0)
    parts.append(f"from an empty cache `{first}` is the first to come within 5 % of it, after {times[first]} batches")
    never = [f"`{name}`" for name, batches in times.items() if batches is None]
    if never:
        parts[-1] += f", and {_listed(never)} never {'does' if len(never) == 1 else 'do'}"
    return "; ".join(parts) + "."


def on_page(record: Mapping[str, Any]) -> str:
    """What docs/tracks.md shows of a board: misses per batch, and a verdict for each stream."""
    lines = ["| stream | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    said = []
    for name, stream in record["streams"].items():
        level = levels(stream)
        lines.append(f"| {name} | " + " | ".join(f"{level[policy]:,.0f}" for policy in COLUMNS) + " |")
        words = f"- **{name}**: {verdict(stream, record['bin_batches'])}"
        said += textwrap.wrap(words, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, "", *said])


def _compared(misses: float, other: float) -> str:
    off = misses / other - 1
    if abs(off) < SAME:
        return "as much as"
    return f"{100 * abs(off):.0f} % {'more' if off > 0 else 'less'} than"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
