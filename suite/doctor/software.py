"""Checks: whether the installed packages belong together, and what in the environment slows them down."""

import os

from suite.doctor.finding import Finding, ok, problem, warning
from suite.doctor.machine import Machine
from suite.records.environment import installed_versions

TRIPLES = {"2.11": ("1.6", "1.6"), "2.12": ("1.7", "1.7"), "2.13": ("1.8", "1.8"), "2.14": ("1.9", "1.9")}
"""fbgemm and torchrec of each torch. Both are built against one torch, which fbgemm's compatibility table names."""
_FBGEMM = ("fbgemm-gpu", "fbgemm-gpu-cpu")
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "NUMBA_DISABLE_JIT": "compiled loops are interpreted",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated anew",
}
"""Variables that cells inherit."""


def matching_packages(_: Machine) -> Finding:
    """torch, fbgemm and torchrec of releases that were built for each other."""
    versions = installed_versions(("torch", "torchrec", *_FBGEMM))
    builds = [name for name in _FBGEMM if name in versions]
    if len(builds) > 1:
        return problem(
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed and have overwritten each other's files",
            "`pip uninstall fbgemm-gpu fbgemm-gpu-cpu`, then `make setup`.",
        )
    fbgemm = builds[0] if builds else "fbgemm-gpu"
    missing = [name for name in ("torch", fbgemm, "torchrec") if name not in versions]
    if missing:
        return problem(f"not installed: {', '.join(missing)}", "`make setup`.")
    seen = ", ".join(f"{name} {versions[name]}" for name in ("torch", fbgemm, "torchrec"))
    wanted = TRIPLES.get(_release(versions["torch"]))
    if wanted is None:
        return warning(
            f"{seen}: this torch is none of {', '.join(TRIPLES)}, with which the suite is tested",
            "`make setup` installs what it is tested with.",
        )
    if (_release(versions[fbgemm]), _release(versions["torchrec"])) != wanted:
        return problem(
            f"{seen}: with this torch belong fbgemm {wanted[0]} and torchrec {wanted[1]}",
            "`make setup`; fbgemm's library is built against one torch, and fails to load or crashes with others.",
        )
    return ok(seen)


def imports(machine: Machine) -> Finding:
    """Whether packages import, with the reason where one does not, and fbgemm is built for what torch is built for."""
    tried = machine.imports
    if tried.error:
        return problem(
            tried.error,
            "`make setup`. A library that fails to load is often built for another torch, or for CUDA.",
        )
    if bool(tried.cuda) == bool(installed_versions(["fbgemm-gpu"])):
        return ok("all packages import")
    if tried.cuda and machine.gpu is None and not tried.sees_gpu:
        return ok(
            "all packages import; torch is the build for CUDA, which computes on a CPU as well",
            "It takes 5 GB. If that is too much, give pip an index of torch's CPU builds in PIP_EXTRA_INDEX_URL.",
        )
    return problem(
        "torch is built for CPUs and fbgemm for CUDA, or the other way round",
        "`pip uninstall fbgemm-gpu fbgemm-gpu-cpu torch`, then `make setup BUILD=cuda` or `BUILD=cpu`.",
    )


def variables(_: Machine) -> Finding:
    """Variables of the environment that make everything slower."""
    found = {name: words for name, words in _SLOW.items() if os.environ.get(name, "0") not in ("", "0")}
    if not found:
        return ok("none that slows programs down")
    return problem("; ".join(f"{name}: {words}" for name, words in found.items()), f"`unset {' '.join(found)}`.")


def _release(version: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(version.partition("+")[0].split(".")[:2])
