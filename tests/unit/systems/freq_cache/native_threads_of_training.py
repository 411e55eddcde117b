"""Run as a script: trains with every tier and look-ahead, and prints the native threads that each leaves, as JSON."""

import json
import os
import sys
from itertools import product

import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from tests.unit.systems.threads_of_a_process import native_threads

ROWS, DIM, IDS, STEPS = 30_000, 32, 8_192, 50
"""Most of a batch's rows miss: they are more elements than torch copies on one thread."""
TIERS = [("host", "fp32"), ("host", "int8"), ("file", "fp32"), ("ram", "fp32"), ("file", "fp16")]


def main(directory: str) -> None:
    torch.set_num_threads(2)
    os.sched_getaffinity = lambda _: {0, 1, 2}  # type: ignore[assignment]
    table = EmbeddingBagConfig(name="rows", feature_names=["rows"], num_embeddings=ROWS, embedding_dim=DIM)
    found = []
    for number, ((tier, slow_rows), look_ahead) in enumerate(product(TIERS, [0, 2, 4])):
        collection = CachedEmbeddingBagCollection(
            [table],
            optimizer=SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.1),
            cache_ratio=0.3,
            batch_lookups=IDS,
            look_ahead=look_ahead,
            slow_rows=slow_rows,
            directory=None if tier == "host" else f"{directory}/{number}",
            ram_bytes=2000 if tier == "ram" else 0,
        )
        for features in collection.announced(map(batch, range(STEPS))):
            collection(features).values().sum().backward()
        found.append(((tier, slow_rows), look_ahead, native_threads()))
        collection.close()
    sys.stdout.write(json.dumps(found))


def batch(step: int) -> KeyedJaggedTensor:
    ids = torch.randint(ROWS, (IDS,), generator=torch.Generator().manual_seed(step))
    return KeyedJaggedTensor(["rows"], ids, lengths=torch.ones(IDS, dtype=torch.int64))


if __name__ == "__main__":
    main(sys.argv[1])
