"""How a cell can end: a closed set."""

import enum


class Status(enum.StrEnum):
    """Every planned cell ends as exactly one of these, from harmless to worst; a system ends as its worst round did."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    OOM_DISK = "oom_disk"
    CRASHED = "crashed"
    WRONG_ANSWER = "wrong_answer"

    @property
    def good(self) -> bool:
        """Whether a run in which every cell ended so exits with 0."""
        return self in (Status.OK, Status.UNSUPPORTED)
