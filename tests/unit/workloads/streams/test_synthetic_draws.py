"""The compiled loops: tables and bags of unequal sizes, and the same numbers on any thread and in any process."""

import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bag_streams import bagged

from workloads.batch import bag_offsets
from workloads.schema import AVAZU
from workloads.streams.draws import sum_effects
from workloads.streams.profiles import load_profile
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.zipf import RankSampler

RANK_FACTOR, HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def slow_effects(ranks, key, half_rank):
    words = ranks.view(np.uint64) * RANK_FACTOR + key
    words = (words ^ (words >> np.uint64(30))) * HASH_FACTOR
    return words.view(np.int64) * 2.0**-63 / (ranks * (1.0 / half_rank) + 1.0)


def test_ranks_of_tables_of_unequal_numbers_of_lookups_are_those_of_each_table():
    laws = [table.law for table in load_profile("avazu", rows=dict(AVAZU.categorical)).tables.values()]
    sampler = RankSampler.of(laws)
    counts = [3000, 0, 1, 1024, 1025, *range(8)]
    starts = np.concatenate([[0], np.cumsum(counts)])
    uniform = np.random.default_rng(4).random(int(starts[-1]))
    ranks = sampler.ranks(uniform, starts)
    for law, start, stop in zip(laws, starts[:-1], starts[1:], strict=True):
        assert np.array_equal(
            ranks[start:stop], RankSampler.of([law]).ranks(uniform[start:stop], np.array([0, stop - start]))
        )


def test_bag_adds_the_mean_effect_of_its_ids_and_an_empty_one_nothing():
    generator = np.random.default_rng(8)
    lengths = generator.integers(0, 6, (3, 700))
    ranks = generator.integers(0, 2**40, int(lengths.sum())) >> generator.integers(0, 40, int(lengths.sum()))
    keys = np.random.Philox(key=1).random_raw(3)
    total = np.ones(700)
    offsets = bag_offsets(lengths)
    sum_effects(ranks, offsets, keys, 8.0, total)
    expected = np.ones(700)
    for bag, (start, stop) in enumerate(pairwise(offsets)):
        if stop > start:
            effects = slow_effects(ranks[start:stop], keys[bag // 700], 8.0)
            expected[bag % 700] += effects.mean()
    assert np.allclose(total, expected, rtol=0, atol=1e-14)


def crc_of(batch):
    parts = (batch.features.values(), batch.features.lengths(), batch.dense, batch.labels)
    return tuple(zlib.crc32(part.numpy().tobytes()) for part in parts)


def test_batches_made_on_many_threads_at_once_are_those_of_one():
    workload = bagged(batch_size=300, seed=2, max_rows=50_000)
    alone = [crc_of(workload.batch(index)) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: crc_of(workload.batch(index)), range(8))) == alone


@pytest.mark.slow  # compiles everything anew
def test_batches_are_the_same_in_a_process_that_compiles_anew_with_two_threads_of_torch(tmp_path):
    names = ["mlperf_dlrm_v2@drift", "avazu"]
    code = (
        "import zlib, torch; torch.set_num_threads(2)\n"
        "from workloads.streams.synthetic import SyntheticWorkload as W\n"
        f"for name in {names}:\n"
        "    b = W.create(name, batch_size=64, seed=3).batch(12345)\n"
        "    parts = (b.features.values(), b.features.lengths(), b.dense, b.labels)\n"
        "    print(*(zlib.crc32(p.numpy().tobytes()) for p in parts))"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[4]), "NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", code]
    other = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    here = [SyntheticWorkload.create(name, batch_size=64, seed=3).batch(12345) for name in names]
    assert [tuple(map(int, line.split())) for line in other.stdout.splitlines()] == [crc_of(batch) for batch in here]
