"""Requests to a worker on its standard input, and its answers: one JSON object per line.

A worker runs one cell, or times several systems in alternation. Answers have a pipe of their own, not standard output,
so that output of a system is not mistaken for an answer.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from suite.records.measured import Model, Optimum
from suite.records.record import Cell, Measurement, Status, Verification


class RunCell(Model):
    """Runs a cell; the answer is a `CellResult`.

    Attributes:
        cell: The cell.
        optima: Optima of cells that trained on the same stream, so that none is replayed twice.
        rows: File for sampled rows, written after training; None: none is written.
    """

    kind: Literal["cell"] = "cell"
    cell: Cell
    optima: tuple[Optimum, ...] = ()
    rows: Path | None = None


class Host(Model):
    """Turns this worker into a timing worker; the answer is `Ack`. The requests below follow.

    Attributes:
        cells: Cells of one setting, by participant name.
        steps: Steps that each system will train after each build.
    """

    kind: Literal["host"] = "host"
    cells: dict[str, Cell]
    steps: int


class Build(Model):
    """Builds a new instance of a system; the answer is `Ack`."""

    kind: Literal["build"] = "build"
    name: str


class RunSteps(Model):
    """Trains a system for some steps; the answer is a `StepTiming`.

    Attributes:
        embeddings_only: Train without the MLPs.
    """

    kind: Literal["turn"] = "turn"
    name: str
    steps: int
    embeddings_only: bool = False


class Clear(Model):
    """Frees all systems that were built; the answer is `Ack`."""

    kind: Literal["clear"] = "clear"


Request = RunCell | Host | Build | RunSteps | Clear
REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


class Progress(Model):
    """A progress message. Only the training thread sends it, so a hung system sends none.

    Attributes:
        ratios: Speed relative to the baseline so far, by participant name.
    """

    kind: Literal["progress"] = "progress"
    phase: str
    step: int = 0
    steps: int = 0
    ratios: dict[str, float] = {}


class Ack(Model):
    """Confirms that a request was carried out."""

    kind: Literal["done"] = "done"


class StepTiming(Model):
    """Timing of one `RunSteps`.

    Attributes:
        seconds: Seconds from device synchronisation to device synchronisation.
        wait_s: Part of `seconds` in which the training thread waited for batches.
        loss: Loss of the last step, in hexadecimal, so that every bit is kept.
        read_bytes, written_bytes: Bytes that the process read from and wrote to drives.
        rows_read: Rows that the system read from its file, if it counts them.
    """

    kind: Literal["turn"] = "turn"
    seconds: float
    wait_s: float
    loss: str
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int | None = None


class CellResult(Model):
    """Result of a cell from its own process, or the reason why a timing worker stopped. The last message."""

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
    """A message as one line, newline included."""
    return message.model_dump_json().encode() + b"\n"
