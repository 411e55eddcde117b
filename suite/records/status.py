"""How a cell can end: a closed set."""

import enum


class Status(enum.StrEnum):
    """Every planned cell ends as exactly one of these."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"
    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    OOM_DISK = "oom_disk"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_ANSWER = "wrong_answer"
    INTERRUPTED = "interrupted"

    @property
    def good(self) -> bool:
        """Whether a run in which every cell ended so exits with 0."""
        return self in (Status.OK, Status.UNSUPPORTED)
