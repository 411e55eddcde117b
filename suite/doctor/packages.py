"""Checks: whether the installed packages belong together."""

from __future__ import annotations

import re

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine

_TRIPLES = {"2.11": ("1.6", "1.6"), "2.12": ("1.7", "1.7"), "2.13": ("1.8", "1.8")}
"""fbgemm and torchrec of each torch. Both are built against one torch, which fbgemm's compatibility table names."""
_TORCHMETRICS = "1.0.3"
"""torchrec's own pin."""
_FBGEMM_BUILDS = ("fbgemm-gpu", "fbgemm-gpu-cpu")
_PINNED = ("base.txt", "no-deps.txt", "cpu.txt", "cuda.txt")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s#;]+)")


def matching_packages(machine: Machine) -> Answer:
    """torch, fbgemm and torchrec of releases that were built for each other."""
    torch, torchrec = machine.version("torch"), machine.version("torchrec")
    fbgemm = next((version for name in _FBGEMM_BUILDS if (version := machine.version(name))), None)
    if torch is None or torchrec is None or fbgemm is None:
        versions = {"torch": torch, "torchrec": torchrec, "fbgemm-gpu or fbgemm-gpu-cpu": fbgemm}
        missing = [name for name, version in versions.items() if version is None]
        return problem(f"not installed: {', '.join(missing)}", "`make setup`.")
    seen = f"torch {torch}, fbgemm {fbgemm}, torchrec {torchrec}"
    wanted = _TRIPLES.get(_release(torch))
    if wanted is None:
        return warning(
            f"{seen}: this torch is none of {', '.join(_TRIPLES)}, with which the suite is tested",
            "`make setup` installs what it is tested with.",
        )
    if (_release(fbgemm), _release(torchrec)) != wanted:
        return problem(
            f"{seen}: with torch {_release(torch)} belong fbgemm {wanted[0]} and torchrec {wanted[1]}",
            "`make setup`; fbgemm's library is built against one torch, and fails to load or crashes with others.",
        )
    metrics = machine.version("torchmetrics")
    if metrics != _TORCHMETRICS:
        return problem(
            f"{seen}; torchmetrics {metrics or 'is missing'} where torchrec needs {_TORCHMETRICS}",
            f"`pip install --no-deps torchmetrics=={_TORCHMETRICS}`.",
        )
    return ok(seen)


def fbgemm_build(machine: Machine) -> Answer:
    """One build of fbgemm, for the device that torch is built for."""
    installed = [name for name in _FBGEMM_BUILDS if machine.version(name)]
    if not installed:
        raise Unsaid("fbgemm is not installed")
    if len(installed) > 1:
        return problem(
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed and have overwritten each other's files",
            "`pip uninstall fbgemm-gpu fbgemm-gpu-cpu`, then `make setup`.",
        )
    torch = machine.imports().get("torch")
    if torch is None or torch.built_for is None:
        raise Unsaid("torch does not import, so it cannot say what it is built for")
    for_cuda = installed[0] == "fbgemm-gpu"
    seen = f"{installed[0]} beside a torch for {f'CUDA {torch.built_for}' if torch.built_for else 'CPUs'}"
    if for_cuda != bool(torch.built_for):
        remedy = "`pip uninstall fbgemm-gpu fbgemm-gpu-cpu torch`, then `make setup BUILD=cuda` or `BUILD=cpu`."
        return problem(seen, remedy) if for_cuda else warning(f"{seen}: fbgemm runs on the CPU only", remedy)
    return ok(seen)


def pinned_versions(machine: Machine) -> Answer:
    """Versions that differ from `requirements/`, with which published figures were measured."""
    pins = _pins(machine)
    differing = []
    for name, wanted in pins.items():
        version = machine.version(name)
        if version is None and name in (*_FBGEMM_BUILDS, "nvidia-ml-py"):
            continue  # needed for one kind of device only
        if version is None:
            differing.append(f"{name} is missing ({wanted})")
        elif version.partition("+")[0] != wanted:
            differing.append(f"{name} {version} ({wanted})")
    if not differing:
        return ok(f"all {len(pins)} as in requirements/")
    return warning(
        f"in requirements/ is another version, in brackets: {', '.join(differing)}",
        "`make setup`, or publish figures of these versions apart: records name them, and cells are measured anew.",
    )


def imports(machine: Machine) -> Answer:
    """Whether packages import, with the reason where one does not."""
    found = machine.imports()
    if not found:
        raise Unsaid("nothing could be tried")
    failed = {name: imported.error for name, imported in found.items() if imported.error}
    if not failed:
        return ok(", ".join(found))
    return problem(
        "; ".join(f"import {name}: {error}" for name, error in failed.items()),
        "`make setup`. A library that does not load usually belongs to another torch, or to CUDA on a machine without "
        "a driver.",
    )


def _release(version: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def _pins(machine: Machine) -> dict[str, str]:
    """Versions by distribution, from those requirement files that a run needs.

    Raises:
        Unsaid: the files are not there, as in an installation without them.
    """
    folder = machine.project / "requirements"
    found = {}
    for name in _PINNED:
        try:
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise Unsaid(f"{folder / name} cannot be read ({error.strerror})") from None
        found.update({match[1]: match[2] for line in lines if (match := _PIN.match(line.strip()))})
    return found
