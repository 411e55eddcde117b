"""What a report is made of: records with their files, and the simulations that lie beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from suite.records.groups import Group, group_records
from suite.records.record import Record
from suite.records.store import NotARecord, Problem, RecordStore, read_json
from suite.simulate.results import Simulation
from suite.tables.settings import sweeps


@dataclass(frozen=True, kw_only=True)
class Source:
    """Everything that gets published, read once.

    Attributes:
        groups: Comparison groups, sizes of a sweep from the smallest.
        files: File of every record of the groups, by the record's key.
        problems: Files that were skipped, and why.
        simulations: Replays of every policy by cache size, with the optimum.
    """

    groups: tuple[Group, ...]
    files: dict[str, Path] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    simulations: tuple[Simulation, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """All records that a table shows."""
        return tuple(record for group in self.groups for record in group.records)


def read(roots: Sequence[Path], simulated: Path | None = None) -> Source:
    """Read results; what could not be read stands under `problems`, so that the rest is still reported.

    Args:
        roots: Results directories, each with `records/`. Where two hold a record of one key, the newest counts.
        simulated: Directory below which files named `simulation.json` lie; None: there are none.
    """
    every: dict[Path, Record] = {}
    problems: list[Problem] = []
    for root in roots:
        records, bad = RecordStore(root).load_files()
        every |= records
        problems += bad
    files: dict[str, Path] = {}
    for path in sorted(every, key=lambda path: (every[path].order, path)):
        if (older := files.get(every[path].key)) is not None:
            problems.append(Problem(older, "repeats the key of a file that counts in its place"))
        files[every[path].key] = path
    groups = tuple(chain(*sweeps(group_records(every[path] for path in files.values()))))
    shown = {record.key for group in groups for record in group.records}
    simulations = tuple(_simulated(simulated, problems)) if simulated is not None else ()
    return Source(
        groups=groups,
        files={key: path for key, path in files.items() if key in shown},
        problems=tuple(problems),
        simulations=simulations,
    )


def _simulated(folder: Path, problems: list[Problem]) -> Iterator[Simulation]:
    for path in sorted(folder.rglob("simulation.json")):
        try:
            yield Simulation.model_validate(read_json(path))
        except NotARecord as error:
            problems.append(Problem(path, str(error)))
        except ValidationError as error:
            problems.append(Problem(path, f"is no simulation of this version: {str(error).splitlines()[0]}"))
