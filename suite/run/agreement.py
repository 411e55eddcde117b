"""Rows that a cell reads back during and after training, and their comparison between the exact systems of a setting.

Verification has 300 rows per table. Sampled rows, the same ones in every cell of a setting and round, show errors that
occur only in large tables or after many steps.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from suite.records.groups import REFERENCE, precedence
from suite.records.record import Cell, Check, Record, Status
from suite.records.store import write_atomically

if TYPE_CHECKING:  # the parent process compares rows without importing torch
    from systems.contract import EmbeddingSystem
    from workloads.batch import Workload

log = logging.getLogger(__name__)

_NAME = "rows after training, beside "
_NOT_COMPARED = (
    "its rows after training were not compared: `rows`, beside `records`, lacks a side; --fresh reads them anew"
)
_ALLOWED = 0.01
"""Tolerance relative to a row's change in the first 16 steps, where sums have another order: see `largest_difference`.

With noise of 1e-7 and 1e-6 in every pooled number and gradient, trained rows differed by at most 4e-4 after 16 steps,
with SGD at a learning rate of 1 and row-wise Adagrad at 0.01; after 600 steps of that SGD half of the rows differed by
a sixth, and some by their whole change.
"""
_ALLOWED_EACH = 0.2
"""The same where a row is rounded after each of its gradients: in 16 batches hot rows differed by up to 0.08."""
_ALLOWED_ON_CUDA = 0.25
"""The same on a CUDA device, where systems sum by kernels of torch, of fbgemm or on the host.

Then rows of the next steps differ in their last bits, and where the input of a ReLU is as small as that, a whole
gradient differs. While fbgemm was free to add in any order, rows of `full_gpu` and of three caches differed by at most
0.11 on an NVIDIA H200 (Criteo Kaggle, scale full; records in commit 346373b1). In a fixed order (`fixed_order`) those
of four caches do not differ. An update that is lost is more than this, of a row that had up to three.
"""
_TYPICAL = 0.1
_ROUNDING = 10 * 2.0**-24
"""Share of a row's norm that is no difference in any case: some roundings of the row itself."""

Rows = Mapping[str, npt.NDArray[Any]]
"""Arrays by name, as `SampledRows.save` writes them."""
ROWS = 4096
_EARLY_STEPS = 16
_BATCHES = 4
"""Batches whose rows are sampled, from the first steps and from all."""
_TRAINED = 0.75
"""Share of a table's sample that comes from trained batches, if they have as many rows."""


def sampled_ids(workload: Workload, *, steps: int, seed: int) -> dict[str, npt.NDArray[np.int64]]:
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
    found: dict[str, npt.NDArray[np.int64]] = {}
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
        self._ids = ids
        names = [name for name, found in ids.items() for _ in found]
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "table": np.array(names),
            "id": np.concatenate(list(ids.values())),
        }
        self._before = self._read()["weight"]

    def read(self, moment: Literal["early", "late"]) -> None:
        """Read the rows, their optimizer state and the norm of each row's change, after the first or all steps."""
        found = self._read()
        found["moved"] = np.linalg.norm(found["weight"] - self._before, axis=1)
        self._arrays.update({f"{moment}/{entry}": values for entry, values in found.items()})

    def save(self) -> None:
        """Write the rows to the file, for `compared`.

        The file has each row's `table` and `id`, and for both moments `MOMENT/weight`, fp32 `[n, dim]`, `MOMENT/moved`,
        fp32 `[n]`, the norm of the row's change in training, and the optimizer's states, fp32 `[n]` or `[n, dim]`.

        Raises:
            StoreError: it could not be written.
        """
        content = io.BytesIO()
        np.savez(content, **self._arrays)  # type: ignore[arg-type] # its stubs have an option among the names
        write_atomically(self._path, content.getvalue())

    def _read(self) -> dict[str, npt.NDArray[Any]]:
        """Weights and states of all rows."""
        import torch

        read = [self._system.read_rows(name, torch.from_numpy(ids)) for name, ids in self._ids.items()]
        entries = {"weight": [rows.weights for rows in read]}
        entries |= {name: [rows.state[name] for rows in read] for name in read[0].state}
        return {name: torch.cat(parts).numpy() for name, parts in entries.items()}


def path_of(out: Path, key: str) -> Path:
    """File of a cell's sampled rows."""
    return out / "rows" / f"{key}.npz"


def compared(records: Sequence[Record], out: Path) -> list[Record]:
    """Copies of records with a check of their rows, or as `wrong_answer`; unchanged records are left out.

    Records of one setting and round are compared with `reference`, if its rows exist, else with the baseline, else with
    the first record.
    """
    exact = [
        record
        for record in records
        if record.status is Status.OK
        and record.cell.ranks is None  # sharded cells are compared with one process in their verification
        and record.verification is not None
        and record.measurement is not None
        and record.measurement.exact
    ]
    rows = {record.key: found for record in exact if (found := _read(path_of(out, record.key))) is not None}
    able = sorted((record for record in exact if record.key in rows), key=lambda record: precedence(record.cell.system))
    checked_with = {check.name for record in exact for check in _checks(record, _NAME)}
    changed = []
    for record in exact:
        if record.key in rows and len(able) > 1:
            after = record if record is able[0] else _judged(record, able[0], rows)
        elif len(exact) == 1 or _checks(record, _NAME) or _NAME + record.cell.system in checked_with:
            continue
        else:
            after = record.model_copy(update={"notes": tuple(dict.fromkeys((*record.notes, _NOT_COMPARED)))})
        if after != record:
            changed.append(after)
    return changed


def drop_rows(records: Sequence[Record], out: Path) -> None:
    """Remove the rows of records that have a check; the anchor's rows stay, for cells that run later."""
    for record in records:
        if record.status.good and _checks(record, _NAME):
            path_of(out, record.key).unlink(missing_ok=True)


def same_arithmetic(one: Record, other: Record) -> bool:
    """Whether two systems must agree bit for bit: on a CPU with SGD, where both were verified as bitwise equal."""
    cells, checks = (one.cell, other.cell), [_checks(record, "sgd:") for record in (one, other)]
    exact = all(found and not any(check.max_difference for check in found) for found in checks)
    return exact and all((cell.device, cell.optimizer) == ("cpu", "sgd") for cell in cells)


def largest_difference(ours: Rows, theirs: Rows, *, bitwise: bool) -> tuple[float, str]:
    """Largest difference of a row between two systems, and the name of that row.

    Args:
        ours: Rows of the system under test.
        theirs: Rows of the system that it is compared with.
        bitwise: Take the largest absolute difference of an element. Else, for rows after the first steps only, take the
            norm of the difference less roundings, relative to the norm of the row's change (for optimizer state, of the
            state) plus a tenth of the median of that: a lost update makes the difference as large as the change.
    """
    alike = ours.keys() == theirs.keys() and all(ours[name].shape == theirs[name].shape for name in ours)
    if not alike or any(not np.array_equal(ours[name], theirs[name]) for name in ("table", "id")):
        return math.inf, "sampled different rows or states"
    worst, where = 0.0, ""
    for name, right in theirs.items():
        moment, _, entry = name.partition("/")
        if entry in ("", "moved") or (moment == "late" and not bitwise):
            continue
        apart = _lengths(ours[name] - right, order=math.inf if bitwise else 2)
        if not bitwise:
            changed = _lengths(theirs[f"{moment}/moved"] if entry == "weight" else right)
            typical = np.median(changed[changed > 0]) if changed.any() else 1.0
            apart = np.maximum(apart - _ROUNDING * _lengths(right), 0) / (changed + _TYPICAL * typical)
        apart[np.isnan(apart)] = math.inf
        if apart.max() > worst:
            place = int(apart.argmax())
            worst = float(apart[place])
            where = f"row {theirs['id'][place]} of {theirs['table'][place]}"
            where += ("" if entry == "weight" else f", its {entry}") + (", early" if moment == "early" else "")
    return worst, where


def _judged(record: Record, anchor: Record, rows: Mapping[str, Rows]) -> Record:
    """Copy of the record with a check of its rows against the anchor's; if it fails, without measurement and times."""
    bitwise = same_arithmetic(record, anchor)
    if REFERENCE in (record.cell.system, anchor.cell.system) and math.frexp(record.cell.lr)[0] != 0.5:
        bitwise = False  # fbgemm before 1.8 rounds the step too, which is exact only at a power of two
    summed = all(one.measurement is None or one.measurement.sums_gradients for one in (record, anchor))
    on_device = _ALLOWED_ON_CUDA if record.cell.device == "cuda" else 0.0
    allowed = 0.0 if bitwise else max(_ALLOWED if summed else _ALLOWED_EACH, on_device)
    difference, where = largest_difference(rows[record.key], rows[anchor.key], bitwise=bitwise)
    relative = "" if bitwise else " of what training changed in it"
    failure = f"{where}: differs by {difference:.3g}{relative}, allowed {allowed:g}"
    check = Check.of(_NAME + anchor.cell.system, difference, allowed, detail=failure)
    earlier = [one for one in _checks(record, "") if not one.name.startswith(_NAME)]
    return record.checked((*earlier, check), phase="rows", reason=f"{failure}, beside {anchor.cell.system}")


def _checks(record: Record, prefix: str) -> list[Check]:
    """The checks of a record whose names begin so."""
    checks = record.verification.checks if record.verification is not None else ()
    return [check for check in checks if check.name.startswith(prefix)]


def _read(path: Path) -> Rows | None:
    """The rows of a cell; None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except FileNotFoundError:
        return None
    except Exception as error:  # damage shows as whatever numpy or zipfile raises
        log.warning("%s is left out: %s", path, error or type(error).__name__)
        return None


def _lengths(values: npt.NDArray[Any], *, order: float = 2) -> npt.NDArray[np.float64]:
    """Norm of every row, float64 `[n]`."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.asarray(np.linalg.norm(rows, ord=order, axis=1))
