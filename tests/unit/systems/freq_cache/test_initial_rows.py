"""First values of rows: the published generator, uniform, and the same whichever rows are asked for."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.freq_cache import initial_rows
from systems.freq_cache.initial_rows import first_rows_of, philox

ONES = 0xFFFFFFFF
# Known answers of Random123 (kat_vectors, philox 4x32 10): counter and key, then the words.
KNOWN = [
    ((0, 0, 0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def values(ids: list[int] | Tensor, *, rows: int = 1000, dim: int = 8, seed: int = 7, stream: int = 3) -> Tensor:
    table = EmbeddingBagConfig(name="one", feature_names=["one"], num_embeddings=rows, embedding_dim=dim)
    return first_rows_of([table], seed=seed, streams=[stream])(torch.as_tensor(ids, dtype=torch.int64))


@pytest.mark.parametrize(("counter_and_key", "words"), KNOWN)
def test_generator_gives_the_published_answers(counter_and_key: tuple[int, ...], words: tuple[int, ...]) -> None:
    c0, c1, c2, c3, k0, k1 = (np.uint32(word) for word in counter_and_key)
    assert tuple(int(word) for word in philox((c0, c1, c2, c3), (k0, k1))) == words


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 300),
    dim=st.sampled_from([1, 4, 7, 8, 12, 36, 128]),
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 2**32 - 1),
    draw=st.data(),
)
def test_any_rows_in_any_order_equal_the_whole_table(
    rows: int, dim: int, seed: int, stream: int, draw: st.DataObject
) -> None:
    whole = values(torch.arange(rows), rows=rows, dim=dim, seed=seed, stream=stream)
    ids = draw.draw(st.lists(st.integers(0, rows - 1), max_size=40))
    some = values(ids, rows=rows, dim=dim, seed=seed, stream=stream)
    assert torch.equal(some, whole[torch.tensor(ids, dtype=torch.int64)])


def test_values_are_uniform_within_the_bound() -> None:
    rows = 40_000
    scaled = values(torch.arange(rows), rows=rows, dim=16).double() * rows**0.5
    assert -1 <= scaled.min() < -0.9999
    assert 0.9999 < scaled.max() < 1 + 1e-6
    counts = torch.histc(scaled.float(), bins=64, min=-1, max=1)
    expected = scaled.numel() / 64
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 63 + 5 * (2 * 63) ** 0.5
    assert abs(torch.corrcoef(scaled.T).fill_diagonal_(0).abs().max().item()) < 5 * rows**-0.5


def tables_of(dim: int) -> list[EmbeddingBagConfig]:
    bounds = {"c": {"weight_init_min": -0.3, "weight_init_max": 0.7}}
    return [
        EmbeddingBagConfig(
            name=name, feature_names=[name], num_embeddings=rows, embedding_dim=dim, **bounds.get(name, {})
        )
        for name, rows in (("a", 700), ("b", 1), ("c", 900), ("d", 5000))
    ]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("dim", "in_order", "in_any_order"),
    [
        (1, "eb135a567e5da035", "fa995d382b184b86"),
        (6, "c0b30e20e81458d7", "abf48cc16d3cc9df"),
        (16, "e67813067c124413", "eccae9417874316a"),
    ],
)
def test_rows_of_several_tables_are_what_they_always_were_on_any_number_of_threads(
    dim: int, in_order: str, in_any_order: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a seed made once are not saved: another value would be another model."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: parts)
    monkeypatch.setattr(initial_rows, "_PART_VALUES", 64)
    tables = tables_of(dim)
    first_rows = first_rows_of(tables, seed=2**63 + 11, streams=[4, 0, 7, 2**31])
    rows = sum(table.num_embeddings for table in tables)
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(1))[:4000]
    for ids, digest in ((torch.arange(rows), in_order), (shuffled, in_any_order)):
        assert hashlib.sha256(first_rows(ids).numpy().tobytes()).hexdigest()[:16] == digest
