"""Rows and their optimizer state in a `state_dict`, by `<rows_key>.<table>.<weight or state>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torchrec import EmbeddingBagConfig

from systems.answers import Rows
from systems.spec import OptimizerKind, SparseOptimizer, row_type_of

if TYPE_CHECKING:
    from systems.contract import EmbeddingSystem


def save_rows(system: EmbeddingSystem, destination: dict[str, Any], prefix: str) -> None:
    """Put all rows of a system, flushed first, into a `state_dict`."""
    system.flush()
    for name, table in system.tables.items():
        rows = system.read_rows(name, torch.arange(table.num_embeddings))
        key = f"{prefix}{system.rows_key}.{name}"
        destination[f"{key}.weight"] = rows.weights.to(row_type_of(table))
        for state, value in rows.state.items():
            destination[f"{key}.{state}"] = value
        if system.spec.optimizer.kind is OptimizerKind.ADAM:
            destination[f"{key}.step"] = torch.tensor(system.optimizer_steps(name))


def load_saved_rows(
    system: EmbeddingSystem, state_dict: Mapping[str, Any], prefix: str, *, missing: list[str], errors: list[str]
) -> set[str]:
    """Load the rows of every table that a `state_dict` has whole. Returns the keys that there should be.

    `missing` gets those that are not there, `errors` a sentence for every wrong shape.
    """
    optimizer = system.spec.optimizer
    expected: set[str] = set()
    for name, table in system.tables.items():
        keys = {entry: f"{prefix}{system.rows_key}.{name}.{entry}" for entry in _entries(table, optimizer)}
        expected.update(keys.values())
        absent = [key for key in keys.values() if key not in state_dict]
        if absent:
            missing.extend(absent)
            continue
        wrong = [
            f"{key} has shape {tuple(state_dict[key].shape)}, table {name} wants {shape_of(table, entry, optimizer)}"
            for entry, key in keys.items()
            if tuple(state_dict[key].shape) != shape_of(table, entry, optimizer)
        ]
        if wrong:
            errors.extend(wrong)
            continue
        values = {entry: state_dict[key] for entry, key in keys.items()}
        weights, step = values.pop("weight"), values.pop("step", None)
        system.load_rows(name, 0, Rows(weights.float(), values))
        if step is not None:
            system.set_optimizer_steps(name, int(step))
    return expected


def shape_of(table: EmbeddingBagConfig, entry: str, optimizer: SparseOptimizer) -> tuple[int, ...]:
    """The shape of a table's weight, of a state or of its steps."""
    if entry == "step":
        return ()
    by_row = optimizer.state_shapes(4).get(entry) == 1
    return (table.num_embeddings,) if by_row else (table.num_embeddings, table.embedding_dim)


def _entries(table: EmbeddingBagConfig, optimizer: SparseOptimizer) -> list[str]:
    """What a saved table consists of."""
    step = ["step"] if optimizer.kind is OptimizerKind.ADAM else []
    return ["weight", *optimizer.state_shapes(table.embedding_dim), *step]
