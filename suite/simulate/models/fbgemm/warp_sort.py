"""How fbgemm's kernels order the 32 ways of a set: a bitonic network over the lanes of a warp, which is not stable.

Source: fbgemm v1.8.0, `fbgemm_gpu/include/fbgemm_gpu/utils/bitonic_sort.cuh`, the same in v1.6.0: sorted runs of 1, 2,
4, 8 and 16 lanes are merged; a merge first compares every lane of a pair of runs with its mirror image, then lanes at
halving distances. Two lanes swap only where the lower one has the greater key, so equal keys stay apart as they are.
"""

from __future__ import annotations

import numpy as np

from systems.freq_cache.compiled import compiled

LANES = 32


def _network() -> list[tuple[int, int]]:
    """The pairs that are compared, one after the other; those of a stage have no lane in common."""
    pairs = []
    run = 1
    while run < LANES:
        pairs += [(lane, lane ^ (2 * run - 1)) for lane in range(LANES) if not lane & run]
        distance = run // 2
        while distance:
            pairs += [(lane, lane ^ distance) for lane in range(LANES) if not lane & distance]
            distance //= 2
        run *= 2
    return pairs


_PAIRS = np.array(_network(), np.uint8)


_LANE_BITS = 5


@compiled
def warp_sort(keys, lanes):
    """Sort 32 keys of at most 58 bits ascending, and with them the lanes that they came from, as the warp would."""
    for lane in range(LANES):
        keys[lane] = keys[lane] << _LANE_BITS | lane  # one number to move, of which the lane does not count
    for i in range(_PAIRS.shape[0]):
        low, high = _PAIRS[i, 0], _PAIRS[i, 1]
        here, there = keys[low], keys[high]
        swaps = here >> _LANE_BITS > there >> _LANE_BITS
        keys[low] = there if swaps else here
        keys[high] = here if swaps else there
    for lane in range(LANES):
        lanes[lane] = keys[lane] & (LANES - 1)
        keys[lane] >>= _LANE_BITS
