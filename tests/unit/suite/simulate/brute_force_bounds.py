"""Bounds once more: by trying every way of choosing what stays, and by their rules with sets and sorted lists."""

from collections.abc import Iterator, Sequence
from itertools import combinations

Batches = Sequence[frozenset[int]]
"""The rows of every batch."""


def subsets(rows: frozenset[int], most: int) -> Iterator[frozenset[int]]:
    for size in range(min(most, len(rows)) + 1):
        yield from map(frozenset, combinations(sorted(rows), size))


def least_misses(batches: Batches, *, slots: int, bypass: bool, start: frozenset[int], counted_from: int) -> int:
    """The fewest counted misses over all choices of rows that stay after each batch, and of a start among some rows.

    A batch larger than the cache, or any batch with `bypass`, may leave out rows of its own.
    """
    costs = dict.fromkeys(subsets(start, slots), 0)
    for number, batch in enumerate(batches):
        after: dict[frozenset[int], int] = {}
        for held, cost in costs.items():
            paid = cost + (len(batch - held) if number >= counted_from else 0)
            for kept in subsets(held | batch, slots):
                if (bypass or len(batch) > slots or batch <= kept) and paid < after.get(kept, paid + 1):
                    after[kept] = paid
        costs = after
    return min(costs.values())


class BruteForceBelady:
    """Keeps what is used next, counted batch by counted batch.

    Attributes:
        misses: Of every batch.
        back: Changed rows that left while a batch had its turn.
    """

    def __init__(self, batches: Batches, *, slots: int, bypass: bool, start: frozenset[int], counted_from: int) -> None:
        self.misses: list[int] = []
        self.back: list[int] = []
        never = len(batches)

        def next_use(row: int, now: int) -> int:
            """The next counted use; never, if a batch that is not counted brings the row back before."""
            later = next((n for n in range(now + 1, never) if row in batches[n]), never)
            return later if later >= counted_from else never + 1

        wanted = [row for row in sorted(start) if next_use(row, -1) < never]
        held = frozenset(sorted(wanted, key=lambda row: next_use(row, -1))[:slots])
        unchanged = held
        for now, batch in enumerate(batches):
            self.misses.append(len(batch - held))
            unchanged -= batch
            pinned = frozenset() if bypass or len(batch) > slots else batch

            def order(row: int, now: int = now, unchanged: frozenset[int] = unchanged) -> tuple[int, bool]:
                return next_use(row, now), row in unchanged

            others = sorted((held | batch) - pinned, key=order)
            kept = pinned | frozenset(others[: slots - len(pinned)])
            kept = frozenset(row for row in kept if next_use(row, now) <= never)  # the others are worth nothing
            self.back.append(len((held | batch) - kept - unchanged))
            held = kept
