"""The model that every system trains: torchrec's DLRM with the system in the embedding collection's place."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DLRM

_CHUNK_ROWS = 1 << 16
_PRIME = 1_000_003  # spreads (seed, table, chunk) over generator seeds


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
    return DLRM(
        embedding_bag_collection=embeddings,
        dense_in_features=dense_columns,
        dense_arch_layer_sizes=[*bottom_mlp, embedding_dim],
        over_arch_layer_sizes=list(top_mlp),
        dense_device=device,
    )


def initial_rows(*, table: int, rows: int, dim: int, seed: int, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of a table before training, fp32 `[stop - start, dim]`, uniform in +-1/sqrt(rows).

    Any part can be made on its own and equals that part of the whole. The bound is facebookresearch/dlrm's.
    """
    bound = 1 / math.sqrt(rows)
    parts = []
    for chunk in range(start // _CHUNK_ROWS, -(-stop // _CHUNK_ROWS)):
        first = chunk * _CHUNK_ROWS
        size = min(rows - first, _CHUNK_ROWS)
        generator = torch.Generator().manual_seed(((seed * _PRIME + table) * _PRIME + chunk) % 2**63)
        values = torch.empty(size, dim).uniform_(-bound, bound, generator=generator)
        parts.append(values[max(start - first, 0) : stop - first])
    return torch.cat(parts)
