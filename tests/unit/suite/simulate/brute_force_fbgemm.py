"""fbgemm's cache once more, kernel by kernel in the order in which they are launched, in lists and dicts.

A warp is 32 lanes that do the same at the same time; every row is looked for in all ways of its set. Nothing is shared
with the simulator but the words.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

WARP = 32
MASK = 2**64 - 1


def murmur_set(row: int, sets: int) -> int:
    h = row
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = ((h ^ (h >> 33)) * factor) & MASK
    return (h ^ (h >> 33)) % sets


def exchange(keys: list[int], values: list[int], *, across: int, greater_half: int) -> tuple[list[int], list[int]]:
    """Every lane looks at `lane ^ across`; those with the bit `greater_half` keep the greater key of the two."""
    new_keys, new_values = [], []
    for lane in range(WARP):
        other = lane ^ across
        takes = keys[lane] < keys[other] if lane & greater_half else keys[lane] > keys[other]
        new_keys.append(keys[other] if takes else keys[lane])
        new_values.append(values[other] if takes else values[lane])
    return new_keys, new_values


def bitonic_sort(keys: Sequence[int]) -> tuple[list[int], list[int]]:
    """Keys ascending, and the lanes that they came from."""
    sorted_keys, lanes = list(keys), list(range(WARP))
    for length in (1, 2, 4, 8, 16):
        sorted_keys, lanes = exchange(sorted_keys, lanes, across=2 * length - 1, greater_half=length)
        for stride in (8, 4, 2, 1):
            if stride < length:
                sorted_keys, lanes = exchange(sorted_keys, lanes, across=stride, greater_half=stride)
    return sorted_keys, lanes


class BruteForceCache:
    """Counts what each kernel moves, and what `get_uvm_cache_stats` and the miss counter have."""

    def __init__(self, *, sets: int, policy: str, locks_lines: bool = False) -> None:
        self.policy = policy
        self.locks_lines = locks_lines
        self.state: list[list[int | None]] = [[None] * WARP for _ in range(sets)]
        self.stamps = [[0] * WARP for _ in range(sets)]
        self.locks = [[0] * WARP for _ in range(sets)]
        self.frequency: Counter[int] = Counter()
        self.timestep = 1
        self.moved: Counter[str] = Counter()
        self.prefetched: list[tuple[list[int], list[tuple[int, int] | None]]] = []

    def location(self, row: int) -> tuple[int, int] | None:
        chosen = murmur_set(row, len(self.state))
        ways = [way for way in range(WARP) if self.state[chosen][way] == row]
        assert len(ways) <= 1
        return (chosen, ways[0]) if ways else None

    def prefetch(self, ids: list[int]) -> None:
        self.timestep += 1
        if ids:
            absent = {row for row in ids if self.location(row) is None}
            self.moved["calls"] += 1
            self.moved["calls with misses"] += bool(absent)
            self.moved["unique misses"] += len(absent)
            self.moved["lookup misses"] += sum(row in absent for row in ids)
            self.populate(ids)
        locations = [self.location(row) for row in ids]
        self.prefetched.append((ids, locations))

    def populate(self, ids: list[int]) -> None:
        if self.policy == "lfu":
            self.frequency.update(ids)
        by_set = defaultdict(list)
        for row in sorted(set(ids)):
            found = self.location(row)
            if found is None:
                by_set[murmur_set(row, len(self.state))].append(row)
                continue
            chosen, way = found
            self.stamps[chosen][way] = self.timestep
            self.locks[chosen][way] += self.locks_lines
        insert = self.insert_lru if self.policy == "lru" else self.insert_lfu
        for chosen, newcomers in by_set.items():
            insert(chosen, newcomers)

    def insert_lru(self, chosen: int, newcomers: list[int]) -> None:
        times, ways = bitonic_sort(self.stamps[chosen])
        inserted = 0
        for turn in range(min(len(newcomers), WARP)):
            if self.locks_lines and self.locks[chosen][ways[turn]] > 0:
                continue
            if times[turn] == self.timestep:
                break
            self.replace(chosen, ways[turn], newcomers[inserted])
            self.stamps[chosen][ways[turn]] = self.timestep
            self.locks[chosen][ways[turn]] += self.locks_lines
            inserted += 1

    def insert_lfu(self, chosen: int, newcomers: list[int]) -> None:
        costs = [-1 if row is None else self.frequency[row] for row in self.state[chosen]]
        costs, ways = bitonic_sort(costs)
        by_rank = sorted(newcomers, key=lambda row: -self.frequency[row])  # stable, as the radix sort is
        for turn in range(min(len(by_rank), WARP)):
            if costs[turn] > self.frequency[by_rank[turn]]:
                break
            self.replace(chosen, ways[turn], by_rank[turn])

    def replace(self, chosen: int, way: int, row: int) -> None:
        self.moved["evicted"] += self.state[chosen][way] is not None
        self.moved["inserted"] += 1
        self.state[chosen][way] = row

    def forward_and_backward(self) -> None:
        ids, locations = self.prefetched.pop(0)
        self.moved["read in forward"] += locations.count(None)
        if self.locks_lines:
            for chosen, way in set(locations) - {None}:
                self.locks[chosen][way] -= 1
        self.moved["absent in forward"] += len({row for row in ids if locations[ids.index(row)] is None})
        self.moved["updated in backward"] += sum(self.location(row) is None for row in set(ids))
