"""Where a cell ran: machine, software and code."""

from __future__ import annotations

from suite.records.model import Model


class Environment(Model):
    """Where a cell ran. `machine` digests what is stable; the rest is for the reader."""

    machine: str
    """Digest of CPU model, core count, memory and GPU models: equal on equal machines."""
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    os: str
    python: str
    packages: dict[str, str]
    """Versions of torch, torchrec, fbgemm-gpu(-cpu), numpy, ..., by distribution name."""
    code: str
    """Digest of the source files of suite, systems and workloads."""
    system_code: str | None = None
    """Digest of the source files of a system given as `module:Class`. None: one of the suite's, or it was not found."""
    commit: str | None = None
    dirty: bool | None = None
    threads: int
