"""What the tests of tracks share: short streams, and their ids."""

import functools
from dataclasses import replace

import numpy as np
import torch

from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.track import Table
from workloads.streams.zipf import RankLaw

BATCH = 4096
SHORT = 49 * BATCH
"""Samples of a training split that a test can draw completely."""


@functools.cache
def kaggle(track=None, *, samples=None, batch_size=BATCH, max_rows=30_000, seed=5):
    """Criteo Kaggle on smaller tables, and a shorter training split if told so."""
    schema = SCHEMAS["criteo_kaggle"]
    rows = dict(SyntheticWorkload.create("criteo_kaggle", batch_size=1, seed=0, max_rows=max_rows).tables)
    if samples is not None:
        schema = replace(schema, train_rows=samples)
    return SyntheticWorkload(schema=schema, rows=rows, batch_size=batch_size, seed=seed, track=track)


def ids_of(workload, indices, split=Split.TRAIN):
    """Row ids of consecutive batches, one after the other, `[tables, samples]`."""
    parts = [workload.batch(i, split).features.values().view(len(workload.tables), -1) for i in indices]
    return torch.cat(parts, dim=1).numpy()


def number_of(workload, table):
    return list(dict(workload.tables)).index(table)


def ids_by_popularity(workload, table, ranks):
    """Row ids of identities."""
    return workload._scrambler.table_ids(number_of(workload, table), np.asarray(ranks, dtype=np.int64))


LAW = RankLaw(rows=100_000, head=(0.1, 0.05), exponent=1.05, shift=3.0)


def one_table(*, rows=5000, pinned=0, samples=10**6, keys=1):
    words = np.random.Philox(keys).random_raw(2)
    return Table(LAW.resized(rows), pinned, words, samples)
