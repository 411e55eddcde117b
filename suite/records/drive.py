"""What a record says of rows on a drive: how fast the drive is, how memory was held, and what was read and written."""

from __future__ import annotations

from suite.records.model import Model


class DriveSpeed(Model):
    """Random reads that the drive gives, past the page cache, measured in the directory of the tables."""

    file_system: str
    """Kind, such as `ext4`."""
    read_bytes: int
    """Of every read."""
    reads_per_s_depth_1: float
    """One after the other."""
    reads_per_s_depth_32: float
    """32 at a time."""
    measured_by: str
    """`fio 3.36`, or the suite itself."""


class HeldMemory(Model):
    """How a process was held to its host budget."""

    how: str
    """`memory control group, version 2`, say."""
    without_rows_bytes: int
    """The most that training the same model took before there were more than a few hundred rows of a table."""
    limit_bytes: int
    """That, and the budget."""
    peak_bytes: int | None
    """Most that was in use, page cache included. None: the kernel does not say."""


class DriveTraffic(Model):
    """What a process read from and wrote to drives in some steps; reads that the page cache answers do not count."""

    steps: int
    read_bytes: int
    written_bytes: int
    rows_read: int | None = None
    """Rows that the system asked its file for; None: it does not know."""
