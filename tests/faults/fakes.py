"""Systems that misbehave, each in one way. None takes more than it says, or outlives a test by much."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from systems.contract import Support, Tier, Verdict, WorkingSetTooLarge
from systems.reference import ReferenceSystem

PID_FILE = "FAULTS_PID_FILE"
"""Environment variable: where a fake writes the process ids that a test wants to know, one a line."""
CALM = "FAULTS_CALM"
"""Environment variable: where it is set, `HangsUnlessCalm` works."""
LONGEST_S = 180.0
"""How long a fake hangs where nobody stops it."""


def tell(*pids: int) -> None:
    """Write process ids for the test, all at once."""
    path = Path(os.environ[PID_FILE])
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(map(str, pids)))
    partial.replace(path)


class NoMemory(ReferenceSystem):
    """Is refused host memory."""

    def __init__(self, spec):
        super().__init__(spec)
        raise MemoryError


class DeviceFull(ReferenceSystem):
    """Is refused device memory."""

    def forward(self, features):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")


class PinnedMemoryFull(ReferenceSystem):
    """Is refused memory by the driver itself, past torch's allocator."""

    def forward(self, features):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


class DiskFull(ReferenceSystem):
    """Finds the drive full, and says so in words of its own."""

    def forward(self, features):
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rows")
        raise RuntimeError("rows could not be written back") from full


class HangsUnlessCalm(ReferenceSystem):
    """Sleeps, with a child in a session of its own beside it; works where the environment says so."""

    def forward(self, features):
        if CALM in os.environ:
            return super().forward(features)
        child = subprocess.Popen(["sleep", str(LONGEST_S)], start_new_session=True)
        tell(os.getpid(), child.pid)
        time.sleep(LONGEST_S)
        raise AssertionError("nobody stopped it")


class Segfaults(ReferenceSystem):
    """Dies of a bad pointer."""

    def forward(self, features):
        os.write(2, b"about to follow a bad pointer\n")
        os.kill(os.getpid(), signal.SIGSEGV)


class Noisy(ReferenceSystem):
    """Works, and writes megabytes of what looks like messages, and is not text, to both outputs."""

    def forward(self, features):
        sys.stdout.write('{"kind": "outcome", "status": "crashed", "reason": "printed"}\n')
        sys.stdout.flush()
        os.write(1, b"\xff\xfe\x00garbage without an end")
        os.write(2, b"\x80" * 200_000 + b"\n" + b"progress 50%\r" * 5_000)
        return super().forward(features)


class BuildFails(ReferenceSystem):
    """Raises while it is built."""

    def __init__(self, spec):
        super().__init__(spec)
        raise ValueError("rows of width 4 do not fit a tile of 64:\nsecond line")


class SaysWhatItNeeds(ReferenceSystem):
    """Raises an ImportError of its own wording."""

    def __init__(self, spec):
        super().__init__(spec)
        raise ImportError("needs frobnicate 2 or later: pip install 'frobnicate>=2'")


class TooLarge(ReferenceSystem):
    """Says that a batch does not fit."""

    def forward(self, features):
        raise WorkingSetTooLarge("a batch has 900 distinct rows, the cache 512: give --cache-ratio 0.5")


class Unsupported(ReferenceSystem):
    """Declines up front."""

    @classmethod
    def support(cls, spec):
        return Support(Verdict.UNSUPPORTED, "no row-wise Adagrad: use --optimizer sgd")


class NeedsMoreDiskThanThereIs(ReferenceSystem):
    """Needs more room for files than any drive has."""

    @classmethod
    def required_bytes(cls, spec):
        return {Tier.DISK: 10**18}


class NeedsMoreThanThereIs(ReferenceSystem):
    """Needs more host memory than any machine has."""

    @classmethod
    def required_bytes(cls, spec):
        return dict.fromkeys(super().required_bytes(spec), 10**18)
