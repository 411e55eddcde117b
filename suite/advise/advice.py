"""The whole advice for one workload: predictions, the choice, and the frontier."""

from __future__ import annotations

from typing import Literal

from suite.advise.calibration import Probes
from suite.advise.candidates import Refusal
from suite.advise.frontier import Frontier
from suite.advise.model import Prediction
from suite.advise.recommend import Choice
from suite.advise.shape import Described, Shape


class PublishedComparison(Described):
    """A published row beside what the model says of the system closest to it."""

    published_system: str
    published_steps_per_s: float
    modelled_system: str
    modelled_fp32_steps_per_s: float
    """Matrices multiplied in fp32."""
    modelled_tf32_steps_per_s: float
    published_hardware: str
    source: str


class Advice(Described):
    """What `python -m suite advise` found."""

    schema_version: Literal[1] = 1
    workload: str
    scale: str
    machine: str
    basis: Literal["calibrated", "modelled"]
    budget_bytes: int | None
    shape: Shape
    batches: int
    """Replayed, of which `counted` were counted."""
    counted: int
    predictions: tuple[Prediction, ...]
    refused: tuple[Refusal, ...]
    choice: Choice | None
    frontier: tuple[Frontier, ...]
    published: tuple[PublishedComparison, ...] = ()
    calibration_s: float | None = None
    probes: Probes | None = None
    """Of the machine that was calibrated."""
