"""What a worker is asked for on its standard input, and what it answers: one JSON object per line.

A worker runs one cell, or is the host of systems that take turns. Answers take a pipe of their own: standard output
stays out of it, so that a system that prints cannot be mistaken for one that reports.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from suite.records.base import Model
from suite.records.measured import Optimum
from suite.records.record import Cell, Measurement, Verification
from suite.records.status import Status


class RunCell(Model):
    """Run a cell; an `CellResult` is the answer.

    Attributes:
        cell: What to run.
        optima: Of cells that trained on the same stream, so that none is replayed twice.
        rows: Where sampled rows are written after training; None: nowhere.
    """

    kind: Literal["cell"] = "cell"
    cell: Cell
    optima: tuple[Optimum, ...] = ()
    rows: Path | None = None


class Host(Model):
    """Be the host of systems that take turns; `Ack` is the answer. The requests below follow.

    Attributes:
        cells: By the name under which a system takes turns; all of one setting.
        steps: That each system will train after each build.
    """

    kind: Literal["host"] = "host"
    cells: dict[str, Cell]
    steps: int


class Build(Model):
    """Build a system anew; `Ack` is the answer."""

    kind: Literal["build"] = "build"
    name: str


class RunSteps(Model):
    """Train a system a few steps; a `StepTiming` is the answer.

    Attributes:
        embeddings_only: Without the MLPs.
    """

    kind: Literal["turn"] = "turn"
    name: str
    steps: int
    embeddings_only: bool = False


class Clear(Model):
    """Forget all systems that were built; `Ack` is the answer."""

    kind: Literal["clear"] = "clear"


Request = RunCell | Host | Build | RunSteps | Clear
REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


class Progress(Model):
    """A sign of life. Only the thread that does the work sends it, so a hung system goes silent.

    Attributes:
        ratios: Of systems that take turns: speed relative to the baseline so far, by name.
    """

    kind: Literal["progress"] = "progress"
    phase: str
    step: int = 0
    steps: int = 0
    ratios: dict[str, float] = {}


class Ack(Model):
    """What was asked for is done."""

    kind: Literal["done"] = "done"


class StepTiming(Model):
    """A turn that a system took.

    Attributes:
        seconds: From device synchronisation to device synchronisation.
        wait_s: Of these, spent waiting for batches.
        loss: Of the last step, in hexadecimal: every bit counts.
        read_bytes, written_bytes: By its process from and to drives.
        rows_read: That the system asked its file for, where it counts them.
    """

    kind: Literal["turn"] = "turn"
    seconds: float
    wait_s: float
    loss: str
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int | None = None


class CellResult(Model):
    """How a cell ended, as far as its own process could tell, or why a host could not go on. The last message."""

    kind: Literal["outcome"] = "outcome"
    status: Status
    reason: str = ""
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    measurement: Measurement | None = None
    optimum: Optimum | None = None


Answer = Progress | Ack | StepTiming | CellResult
ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def encode(message: BaseModel) -> bytes:
    """One line, newline included."""
    return message.model_dump_json().encode() + b"\n"
