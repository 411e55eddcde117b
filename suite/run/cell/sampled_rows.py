"""Rows that a cell reads back when it has trained, the same ones in every cell of a setting and round.

Verification has 300 rows a table. What goes wrong in large tables alone, or after many steps, shows in these.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from suite.records.record import Cell
from suite.records.store import StoreError, write_atomically
from systems.contract import EmbeddingSystem
from workloads.batch import Workload

ROWS = 4096
_BATCHES = 8
_TRAINED = 0.75
"""Of a table's share, what batches trained on, as far as they have so many rows."""

Ids = dict[str, npt.NDArray[np.int64]]


def sampled_ids(workload: Workload, *, steps: int, seed: int) -> Ids:
    """Which rows, by table: `ROWS` in all, or all rows where there are fewer.

    Tables have equal shares, and the share of a small one goes to the others. Most rows of a share are of batches
    between the first and the last that are trained on; the others are drawn from the whole table.

    Args:
        workload: Trained on batches 0 to `steps` - 1.
        steps: How many.
        seed: Of the choice.
    """
    generator = np.random.default_rng(seed)
    seen: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name, _ in workload.tables}
    for index in sorted({round(place) for place in np.linspace(0, steps - 1, _BATCHES)}):
        features = workload.batch(index).features.to_dict()
        for name, ids in seen.items():
            ids.append(np.unique(features[name].values().numpy()))
    sizes = [rows for _, rows in workload.tables]
    found: Ids = {}
    for (name, rows), share in zip(workload.tables, _shares(sizes), strict=True):
        candidates = np.unique(np.concatenate(seen[name]))
        count = min(candidates.size, round(_TRAINED * share))
        trained = generator.choice(candidates, count, replace=False)
        anywhere = generator.choice(rows, share, replace=False)
        others = anywhere[~np.isin(anywhere, trained)][: share - count]
        found[name] = np.concatenate([trained, others])
    return found


def _shares(sizes: list[int]) -> list[int]:
    """Rows that each table gives, of `ROWS` in all: equally many, or all it has."""
    shares = [0] * len(sizes)
    left = ROWS
    for done, table in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[table] = min(sizes[table], left // (len(sizes) - done))
        left -= shares[table]
    return shares


class SampledRows:
    """Rows of a system, read before it trains.

    Args:
        system: Built and loaded.
        workload: It will train on.
        cell: Says how long.
        path: Of the file that gets them.
    """

    def __init__(self, system: EmbeddingSystem, workload: Workload, cell: Cell, path: Path) -> None:
        self._system = system
        self._path = path
        ids = sampled_ids(workload, steps=cell.steps, seed=cell.round_seed)
        self._ids = {name: torch.from_numpy(found) for name, found in ids.items()}
        self._before = {name: system.read_rows(name, found).weights for name, found in self._ids.items()}

    def save(self) -> tuple[str, ...]:
        """Read them again, with their optimizer state, and write them for `suite.run.agreement`.

        The file has by table and entry `id` int64 `[n]`, `weight` fp32 `[n, dim]`, `moved` fp32 `[n]`, which is how far
        training moved a row, and the optimizer's states fp32, `[n]` or `[n, dim]`.

        Returns:
            Notes: nothing, or why it could not be written.
        """
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for name, ids in self._ids.items():
            rows = self._system.read_rows(name, ids)
            moved = (rows.weights - self._before[name]).norm(dim=1)
            entries = {"id": ids, "weight": rows.weights, "moved": moved, **rows.state}
            arrays.update({f"{name}/{entry}": values.numpy() for entry, values in entries.items()})
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type] # its stubs have an option among the names
        try:
            write_atomically(self._path, content.getvalue())
        except StoreError as error:
            return (f"its rows after training were not kept: {error}",)
        return ()
