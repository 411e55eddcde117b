"""The model that every system trains: torchrec's DLRM with the system in the embedding collection's place."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DLRM

INITIAL_ROWS = 1 << 16
"""Rows of a table that are drawn from one generator."""
_PRIME = 1_000_003  # spreads (seed, table, rows) over generator seeds


def build_dlrm(
    embeddings: nn.Module,
    *,
    dense_columns: int,
    embedding_dim: int,
    bottom_mlp: Sequence[int],
    top_mlp: Sequence[int],
    seed: int,
    device: torch.device,
) -> DLRM:
    """A DLRM whose dense weights depend on the seed alone, whatever the embeddings did to the random generator.

    Args:
        embeddings: Stands where an `EmbeddingBagCollection` would stand.
        dense_columns: Dense features per sample.
        embedding_dim: Width of every table.
        bottom_mlp: Hidden widths of the bottom MLP; its output is `embedding_dim`.
        top_mlp: Widths of the top MLP, ending in 1.
        seed: Of the dense weights.
        device: Of the dense weights.
    """
    torch.manual_seed(seed)
    model = DLRM(
        embedding_bag_collection=embeddings,
        dense_in_features=dense_columns,
        dense_arch_layer_sizes=[*bottom_mlp, embedding_dim],
        over_arch_layer_sizes=list(top_mlp),
        dense_device=device,
    )
    model.inter_arch.to(device)  # torchrec leaves its indices on the CPU, and every step would wait to copy them
    return model


def fill_initial_rows(out: Tensor, *, table: int, rows: int, seed: int, start: int) -> None:
    """Write a table's rows before training, from `start` on, uniform in +-1/sqrt(rows).

    Threads can make `INITIAL_ROWS` each: torch draws from a generator on one. The bound is facebookresearch/dlrm's.

    Args:
        out: Where to, fp32 `[n, dim]`.
        table: Number of the table.
        rows: Rows of the whole table.
        seed: Of all tables.
        start: A multiple of `INITIAL_ROWS`.
    """
    bound = 1 / math.sqrt(rows)
    for number, part in enumerate(out.split(INITIAL_ROWS), start // INITIAL_ROWS):
        generator = torch.Generator().manual_seed(((seed * _PRIME + table) * _PRIME + number) % 2**63)
        part.uniform_(-bound, bound, generator=generator)
