"""Bounded Zipf laws with explicit heavy hitters: how often each rank is drawn, drawing it, and the row id it gets.

Ranks count from 0. The first ranks carry explicit probabilities; the others share what is left in proportion to
`integral from k to k + 1 of (x + shift) ** -exponent dx`. That integral differs from a Zipf-Mandelbrot weight by less
than a per cent beyond the tenth rank, and unlike it has an inverse in closed form: one power per draw, any table size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from workloads.streams.draws import ROUNDS, Floats, Ints, Words, power, scramble, to_ranks

_SINGULAR = 1e-6


@dataclass(frozen=True, kw_only=True)
class RankLaw:
    """The distribution of one table's ranks.

    Attributes:
        rows: Rows of the table; every rank below it has a positive probability unless the head takes everything.
        head: Probabilities of the first ranks, as many as rows at most, summing to 1 at most.
        exponent: Tail exponent, 0 (uniform) or more.
        shift: Added to a rank before the power is taken; flattens the start of the tail.
    """

    rows: int
    head: tuple[float, ...]
    exponent: float
    shift: float

    @property
    def tail_mass(self) -> float:
        """Probability of a rank behind the head."""
        return max(0.0, 1.0 - sum(self.head)) if len(self.head) < self.rows else 0.0

    @property
    def power(self) -> float:
        """1 - exponent, kept away from 0, where the integral would turn into a logarithm."""
        power = 1.0 - self.exponent
        return power if abs(power) > _SINGULAR else _SINGULAR

    @property
    def tail_ends(self) -> tuple[float, float]:
        """`(rank + shift) ** power` at the first rank of the tail and behind the last, the same on every machine."""
        first, last = (power(float(rank + self.shift), self.power) for rank in (len(self.head), self.rows))
        return float(first), float(last)

    def resized(self, rows: int) -> Self:
        """The same law on a table of another size: the head keeps its shares, the tail its mass on other ranks."""
        if rows == self.rows:
            return self
        head = self.head[:rows]
        if rows <= len(self.head):
            total = sum(head)
            head = tuple(share / total for share in head) if total > 0 else (1.0,)
        return replace(self, rows=rows, head=head)

    def probabilities(self, start: int, stop: int) -> Floats:
        """Probabilities of ranks `start` to `stop`, float64 `[stop - start]`, so that big tables go in chunks."""
        return self.between(np.arange(start, stop + 1, dtype=np.float64))

    def between(self, edges: Floats) -> Floats:
        """Probability between each edge and the next, edges in ranks, ascending, whole below the head's end."""
        head = np.asarray(self.head)
        first = len(self.head)
        masses = np.zeros(edges.size - 1)
        if self.tail_mass > 0:
            powers = (np.maximum(edges, first) + self.shift) ** self.power
            low, high = (first + self.shift) ** self.power, (self.rows + self.shift) ** self.power
            masses += np.diff(powers) / (high - low) * self.tail_mass
        in_head = edges[:-1] < first
        masses[in_head] = head[edges[:-1][in_head].astype(np.int64)]
        return masses


class RankSampler(NamedTuple):
    """Turns uniform numbers into ranks, for all tables at once, with the same result on every machine.

    It holds the inverse distributions of the tables; all but `borders` are `[tables]`.

    Attributes:
        borders: Sums of the probabilities of the head's ranks, float64 `[tables, longest head]`; behind a shorter head
            and where there is no tail a number above 1.
        low, slope: Of the line from uniform numbers to the tail's power, float64.
        head_mass: Probability of the head, float64.
        inverse_power, shift: Of the tail's law, float64.
        first, last: First and last rank of the tail, int64.
    """

    borders: Floats
    low: Floats
    slope: Floats
    head_mass: Floats
    inverse_power: Floats
    shift: Floats
    first: Ints
    last: Ints

    @classmethod
    def of(cls, laws: Sequence[RankLaw]) -> Self:
        """The sampler of one law per table."""
        longest = max(len(law.head) for law in laws)
        borders = np.full((len(laws), longest), 2.0)
        for table, law in enumerate(laws):
            borders[table, : len(law.head)] = np.cumsum(law.head)
            if law.tail_mass == 0:
                borders[table, len(law.head) - 1] = 2.0  # above every uniform number
        low, high = np.asarray([law.tail_ends for law in laws]).T.copy()
        tail_mass = np.asarray([law.tail_mass for law in laws])
        return cls(
            borders=borders,
            low=low,
            slope=np.divide(high - low, tail_mass, out=np.zeros_like(high), where=tail_mass > 0),
            head_mass=1.0 - tail_mass,
            inverse_power=1.0 / np.asarray([law.power for law in laws]),
            shift=np.asarray([law.shift for law in laws]),
            first=np.asarray([len(law.head) for law in laws], dtype=np.int64),
            last=np.asarray([law.rows - 1 for law in laws], dtype=np.int64),
        )

    def ranks(self, uniform: Floats, starts: Ints) -> Ints:
        """Ranks of uniform numbers in [0, 1), int64 `[n]`.

        Args:
            uniform: Table after table, float64 `[n]`.
            starts: Where each table's begin, and their number, int64 `[tables + 1]`.
        """
        ranks = np.empty(uniform.size, dtype=np.int64)
        to_ranks(uniform, starts, self, ranks)
        return ranks


class RankScrambler(NamedTuple):
    """One bijection of `[0, rows)` per table, computed rather than stored.

    It scatters ranks over row ids, so that the order of ids says nothing about frequency. A mixer of multiplications by
    odd numbers and right shifts permutes the next power of two; a result that is no row is mixed again until it is one
    (cycle walking, Black and Rogaway 2002), which keeps the map one to one.

    Attributes:
        rows: Rows of each table, uint64 `[tables]`.
        multipliers, offsets: Random words, uint64 `[tables, ROUNDS]`; multipliers are odd.
        mask: All ones in the bits of a rank, uint64 `[tables]`.
        shift: Half of these bits, uint64 `[tables]`.
    """

    rows: Words
    multipliers: Words
    offsets: Words
    mask: Words
    shift: Words

    @classmethod
    def of(cls, rows: Sequence[int], *, generator: np.random.Philox) -> Self:
        """The scrambler of tables with 1 to 2**63 rows each; equal streams of the generator give equal bijections."""
        bits = [(count - 1).bit_length() for count in rows]
        keys = generator.random_raw(2 * ROUNDS * len(rows)).reshape(2, ROUNDS, len(rows))
        return cls(
            np.asarray(rows, dtype=np.uint64),
            np.ascontiguousarray(keys[0].T) | np.uint64(1),
            np.ascontiguousarray(keys[1].T),
            np.asarray([(1 << width) - 1 for width in bits], dtype=np.uint64),
            np.asarray([max(1, (width + 1) // 2) for width in bits], dtype=np.uint64),
        )

    def ids(self, ranks: Ints, starts: Ints) -> Ints:
        """Row ids of ranks, each in `[0, rows)` of its table, int64 `[n]`.

        `ranks` are int64 `[n]`, table after table. `starts` says where each table's begin, and their number, int64
        `[tables + 1]`; tables behind may be left out.
        """
        ids = np.empty(ranks.size, dtype=np.int64)
        scramble(ranks, starts, self, ids)
        return ids

    def table_ids(self, table: int, ranks: Ints) -> Ints:
        """Row ids of one table's ranks, int64 `[n]`."""
        return self.ids(ranks, np.append(np.zeros(table + 1, np.int64), ranks.size))
