"""Train a small DLRM on a skewed stream of clicks and print the loss of every step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.optimizers import in_backward_optimizer_filter

from systems.freq_cache import CachedEmbeddingBagCollection

ROWS = {"user": 50_000, "item": 20_000, "shop": 2_000, "region": 50}
DIM, DENSE_COLUMNS, BATCH_SIZE, LR = 16, 8, 256, 1.0


def batches(steps: int) -> Iterator[Batch]:
    """Fresh batches: one id per table and sample, low ids far more often than high ones."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = [(rows ** torch.rand(BATCH_SIZE, generator=generator)).long() for rows in ROWS.values()]
        dense = torch.randn(BATCH_SIZE, DENSE_COLUMNS, generator=generator)
        lengths = torch.ones(len(ROWS) * BATCH_SIZE, dtype=torch.int64)
        features = KeyedJaggedTensor(list(ROWS), torch.cat(ids) - 1, lengths=lengths)
        yield Batch(dense, features, labels=(dense[:, 0] + ids[1] % 2 > 0.5).long())


def main() -> None:
    """Train from the seeds, or from a saved model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--load", type=Path, help="start from this state_dict")
    parser.add_argument("--save", type=Path, help="write the state_dict here at the end")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=DIM)
        for name, rows in ROWS.items()
    ]
    embeddings = CachedEmbeddingBagCollection(
        tables, optimizer=torch.optim.SGD, optimizer_kwargs={"lr": LR}, cache_ratio=0.1, look_ahead=16
    )
    model = DLRMTrain(DLRM(embeddings, DENSE_COLUMNS, [32, DIM], [32, 1]))
    optimizer = torch.optim.SGD([weight for _, weight in in_backward_optimizer_filter(model.named_parameters())], lr=LR)
    if arguments.load:
        model.load_state_dict(torch.load(arguments.load))

    stream = embeddings.announced(batches(arguments.steps), lambda batch: batch.sparse_features)
    for step, batch in enumerate(stream):
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}")  # noqa: T201
    if arguments.save:
        torch.save(model.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
