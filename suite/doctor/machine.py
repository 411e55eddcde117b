"""What checks ask of a machine; every probe can be replaced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from suite.doctor import probes
from suite.doctor.finding import Unsaid
from suite.doctor.gpu_probe import Gpu, open_gpu
from suite.doctor.imports import Imported, import_all
from suite.doctor.sample import Sample, watch
from suite.run.memory_probes import available_host_bytes

_PROJECT = Path(__file__).resolve().parent.parent.parent
_CPU = "sys/devices/system/cpu"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine, its probes and the process that asks.

    A probe raises `Unsaid` where it has no answer.

    Attributes:
        root: Where `/proc` and `/sys` are found.
        project: Directory that holds `requirements/` and the source packages.
        results: Where records go.
        temporary: Where the system keeps temporary files.
        environment: Variables of the environment.
        affinity: CPUs that this process may use.
        load_average: Of the last minute, over all CPUs.
        available_bytes: Host memory that can still be taken.
        disk: Bytes in all and free of the file system that holds a path.
        writable: Whether this user may write to a directory.
        limits: Resource limits.
        version: Of an installed distribution; None: it is not installed.
        interpreter: State of the running Python.
        sample: What computed for some seconds; taken at the first call.
        imports: How the packages import; they are imported at the first call.
        gpu: The device that would be measured; None: there is none.
    """

    root: Path = Path("/")
    project: Path = _PROJECT
    results: Path = Path("results")
    temporary: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    affinity: Callable[[], frozenset[int]] = probes.affinity
    load_average: Callable[[], float] = probes.load_average
    available_bytes: Callable[[], int] = available_host_bytes
    disk: Callable[[Path], probes.Disk] = probes.disk
    writable: Callable[[Path], bool] = probes.writable
    limits: Callable[[], probes.Limits] = probes.limits
    version: Callable[[str], str | None] = probes.version
    interpreter: Callable[[], probes.Interpreter] = probes.interpreter
    sample: Callable[[], Sample]
    imports: Callable[[], Mapping[str, Imported]]
    gpu: Callable[[], Gpu | None]

    def text(self, path: str) -> str:
        """Contents of a file below the root, stripped.

        Raises:
            Unsaid: it cannot be read.
        """
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError as error:
            raise Unsaid(f"/{path} cannot be read ({error.strerror or error})") from None

    def number(self, path: str) -> int:
        """The integer that a file below the root holds.

        Raises:
            Unsaid: it cannot be read, or holds something else.
        """
        text = self.text(path)
        try:
            return int(text)
        except ValueError:
            raise Unsaid(f"/{path} holds no number but {text[:40]!r}") from None

    def meminfo(self) -> dict[str, int]:
        """Entries of `/proc/meminfo`, those in kB as bytes."""
        found = {}
        for line in self.text("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
        return found

    def memory_entry(self, name: str) -> int:
        """One entry of `/proc/meminfo`, in bytes.

        Raises:
            Unsaid: the kernel does not list it.
        """
        found = self.meminfo()
        if name not in found:
            raise Unsaid(f"/proc/meminfo has no {name}")
        return found[name]

    def online_cpus(self) -> frozenset[int]:
        """Logical CPUs of the machine, whoever may use them."""
        return cpu_list(self.text(f"{_CPU}/online"))

    def cpu_file(self, cpu: int, name: str) -> str:
        """Contents of a file that the kernel keeps of one CPU."""
        return self.text(f"{_CPU}/cpu{cpu}/{name}")


def this_machine(*, seconds: float) -> Machine:
    """The machine that this runs on; others' use of it is watched for so many seconds."""
    environment = dict(os.environ)
    return Machine(
        environment=environment,
        sample=cache(partial(watch, seconds)),
        imports=cache(import_all),
        gpu=cache(partial(open_gpu, environment)),
    )


def cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's notation, as in `0-3,8`.

    Raises:
        Unsaid: it is something else.
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        try:
            found.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise Unsaid(f"{text[:40]!r} is no list of CPUs") from None
    return frozenset(found)


def cpu_words(cpus: frozenset[int]) -> str:
    """The kernel's notation of a set of CPUs; what `taskset -c` takes."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
