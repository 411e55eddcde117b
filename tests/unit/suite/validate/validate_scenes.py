"""Records of every kind in a store, and the command run on them."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from suite.__main__ import app
from suite.records.record import Record, Status
from suite.records.store import RecordStore
from tests.unit.suite.fabricate import cpu_run, gpu_run, optimum, record, verification

ROOT = Path(__file__).resolve().parents[4]
PUBLISHED = ROOT / "results" / "published"


def every_kind() -> list[Record]:
    """A record of every status, with and without what is optional."""
    whole = record("whole", least=optimum(), notes=("said aloud",))
    wrong = record("wrong", status=Status.WRONG_ANSWER, reason="rows: 3 differ", checked=verification(passed=False))
    failed = [
        record(f"s_{status}", status=status, reason="because", phase="train")
        for status in Status
        if status not in (Status.OK, Status.WRONG_ANSWER)
    ]
    return [whole, wrong, *failed]


def stored(root: Path, records: list[Record]) -> list[Path]:
    """The files of records under a results directory."""
    return [RecordStore(root).write(one) for one in records]


def everything() -> list[Record]:
    """Every fabricated record there is."""
    return [*every_kind(), *gpu_run(), *cpu_run()]


def changed(path: Path, place: str, value: Any) -> None:
    """Set `a.b.0` in a file."""
    content = json.loads(path.read_text())
    *outer, last = (int(step) if step.isdigit() else step for step in place.split("."))
    inside = content
    for step in outer:
        inside = inside[step]
    inside[last] = value
    path.write_text(json.dumps(content))


def validate(*words: object) -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, words)], env={"COLUMNS": "80", "NO_COLOR": "1"})
