"""What a worker is asked for on its standard input, and what it answers: one JSON object per line.

Answers take a pipe of their own: standard output stays out of it, so that a system that prints cannot be mistaken for
one that reports.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from suite.records.record import Cell, Measurement, Optimum, Verification
from suite.records.status import Status


class Request(BaseModel):
    """What a worker is asked for; the only thing it is told.

    Attributes:
        cell: What to run.
        optima: Of cells that trained on the same stream, so that none is replayed twice.
    """

    model_config = ConfigDict(frozen=True)

    cell: Cell
    optima: tuple[Optimum, ...] = ()


class Progress(BaseModel):
    """A sign of life. Only the thread that does the work sends it, so a hung system goes silent."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["progress"] = "progress"
    phase: str
    step: int = 0
    steps: int = 0
    steps_per_s: float | None = None


class Outcome(BaseModel):
    """How a cell ended, as far as its own process could tell. The last message."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["outcome"] = "outcome"
    status: Status
    reason: str = ""
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    measurement: Measurement | None = None
    optimum: Optimum | None = None


Message = Annotated[Progress | Outcome, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Progress | Outcome] = TypeAdapter(Message)


def encode(message: Progress | Outcome) -> bytes:
    """One line, newline included."""
    return message.model_dump_json().encode() + b"\n"


def decode(line: bytes) -> Progress | Outcome:
    """Read one line.

    Raises:
        ValueError: the line is not a message.
    """
    return _ADAPTER.validate_json(line)
