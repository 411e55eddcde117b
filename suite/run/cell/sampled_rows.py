"""Rows that a cell reads back while and when it has trained, the same ones in every cell of a setting and round.

Verification has 300 rows a table. What goes wrong in large tables alone, or after many steps, shows in these.
"""

import io
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from suite.records.record import Cell
from suite.records.store import write_atomically
from systems.contract import EmbeddingSystem
from workloads.batch import Workload

ROWS = 4096
_EARLY_STEPS = 16
_BATCHES = 4
"""Whose rows are taken, of the first steps and of all."""
_TRAINED = 0.75
"""Of a table's share, what batches trained on, as far as they have so many rows."""

Ids = dict[str, npt.NDArray[np.int64]]


def sampled_ids(workload: Workload, *, steps: int, seed: int) -> Ids:
    """Which rows, by table: `ROWS` in all, or all rows where there are fewer.

    Tables have equal shares, and the share of a small one goes to the others. Most rows of a share are of batches that
    are trained on (0 to `steps` - 1), first ones and any; the others are drawn from the whole table.
    """
    generator = np.random.default_rng(seed)
    seen: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name, _ in workload.tables}
    places = [np.linspace(0, min(steps, stop) - 1, _BATCHES) for stop in (_EARLY_STEPS, steps)]
    for index in np.unique(np.concatenate(places).round().astype(int)).tolist():
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
    """Rows of a system that is built and loaded, read before it trains on the workload, and kept in a file."""

    def __init__(self, system: EmbeddingSystem, workload: Workload, cell: Cell, path: Path) -> None:
        self._system = system
        self._path = path
        ids = sampled_ids(workload, steps=cell.steps, seed=cell.round_seed)
        self._ids = {name: torch.from_numpy(found) for name, found in ids.items()}
        names = [name for name, found in ids.items() for _ in found]
        self._arrays: dict[str, npt.NDArray[np.generic]] = {
            "table": np.array(names),
            "id": np.concatenate(list(ids.values())),
        }
        self._before = self._read()["weight"]

    def read(self, moment: Literal["early", "late"]) -> None:
        """Read them after the first steps or after all, with their optimizer state, and how far each was moved."""
        found = self._read()
        found["moved"] = (found["weight"] - self._before).norm(dim=1)
        self._arrays.update({f"{moment}/{entry}": values.numpy() for entry, values in found.items()})

    def save(self) -> None:
        """Write what was read for `suite.run.agreement`.

        The file has by row its `table` and `id`, and at both moments `MOMENT/weight`, fp32 `[n, dim]`, `MOMENT/moved`,
        fp32 `[n]`, which is how far training moved a row, and the optimizer's states, fp32 `[n]` or `[n, dim]`.

        Raises:
            StoreError: it could not be written.
        """
        content = io.BytesIO()
        np.savez(content, **self._arrays)  # type: ignore[arg-type] # its stubs have an option among the names
        write_atomically(self._path, content.getvalue())

    def _read(self) -> dict[str, Tensor]:
        """Weights and states of all rows."""
        read = [self._system.read_rows(name, ids) for name, ids in self._ids.items()]
        entries = {"weight": [rows.weights for rows in read]}
        entries |= {name: [rows.state[name] for rows in read] for name in read[0].state}
        return {name: torch.cat(parts) for name, parts in entries.items()}
