"""Sampled rows, which a cell reads back during and after training, the same in every cell of a setting and round.

Verification has 300 rows per table. Sampled rows show errors that occur only in large tables or after many steps.
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
"""Batches whose rows are sampled, from the first steps and from all."""
_TRAINED = 0.75
"""Share of a table's sample that comes from trained batches, if they have as many rows."""

Ids = dict[str, npt.NDArray[np.int64]]


def sampled_ids(workload: Workload, *, steps: int, seed: int) -> Ids:
    """Sampled row ids by table: `ROWS` in all, or all rows if there are fewer.

    Tables have equal shares, and the unused share of a small one goes to the others. Most rows of a share are from
    trained batches (0 to `steps` - 1), early ones and any; the others are drawn from the whole table.
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
    """Sample size of each table, `ROWS` in all: equal, or all rows of a small table."""
    shares = [0] * len(sizes)
    left = ROWS
    for done, table in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[table] = min(sizes[table], left // (len(sizes) - done))
        left -= shares[table]
    return shares


class SampledRows:
    """Sampled rows of a built and loaded system: read before, during and after training, and saved to a file."""

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
        """Read the rows, their optimizer state and the norm of each row's change, after the first or all steps."""
        found = self._read()
        found["moved"] = (found["weight"] - self._before).norm(dim=1)
        self._arrays.update({f"{moment}/{entry}": values.numpy() for entry, values in found.items()})

    def save(self) -> None:
        """Write the rows to the file, for `suite.run.agreement`.

        The file has each row's `table` and `id`, and for both moments `MOMENT/weight`, fp32 `[n, dim]`, `MOMENT/moved`,
        fp32 `[n]`, the norm of the row's change in training, and the optimizer's states, fp32 `[n]` or `[n, dim]`.

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
