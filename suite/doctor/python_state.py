"""Checks: what slows Python or its libraries down."""

from __future__ import annotations

from pathlib import Path

from suite.doctor.finding import Answer, ok, problem, warning
from suite.doctor.machine import Machine

_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "NUMBA_DISABLE_JIT": "compiled loops are interpreted",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated anew",
}
"""With these set to anything but 0 there is nothing to measure. Cells inherit them."""
_NOISY = {
    "COVERAGE_PROCESS_START": "coverage follows every line",
    "COVERAGE_RUN": "coverage follows every line",
    "COVERAGE_PROCESS_CONFIG": "coverage follows every line",
    "LD_PRELOAD": "a library is loaded into every process",
    "MALLOC_CHECK_": "glibc checks allocations",
    "MALLOC_PERTURB_": "glibc overwrites freed memory",
    "NUMBA_DEBUG": "numba prints what it compiles",
    "NUMBA_BOUNDSCHECK": "compiled loops check every index",
    "PYTHONDEVMODE": "Python checks allocations",
    "PYTHONPROFILEIMPORTTIME": "imports are timed",
    "PYTHONTRACEMALLOC": "Python records every allocation",
    "TORCH_SHOW_CPP_STACKTRACES": "torch collects stacks",
}
_KEPT_BY_NUMBA = ("systems/freq_cache", "workloads", "suite/simulate")
"""Folders with compiled loops, whose machine code is kept beside them unless NUMBA_CACHE_DIR names another place."""


def interpreter(machine: Machine) -> Answer:
    """Debug builds, tracers and switches of the running Python; cells start with the same program."""
    state = machine.interpreter()
    found = []
    if state.debug_build:
        found.append("a debug build of Python")
    if state.traced_by:
        found.append(f"{state.traced_by} follows every line")
    if state.development:
        found.append("development mode (-X dev)")
    if state.optimized:
        found.append("-O removes the assertions of every package")
    if found:
        return warning(
            "; ".join(found), "Use a release build without debugger, coverage, -X dev and -O, as published figures do."
        )
    return ok("a release build that nothing follows")


def variables(machine: Machine) -> Answer:
    """Variables of the environment that cells inherit and that make everything slower."""
    environment = machine.environment
    slow = {name: words for name, words in _SLOW.items() if environment.get(name, "0") not in ("", "0")}
    noisy = {name: words for name, words in _NOISY.items() if environment.get(name, "0") not in ("", "0")}
    allocator = environment.get("PYTHONMALLOC", "")
    if "debug" in allocator or allocator == "malloc":
        noisy[f"PYTHONMALLOC={allocator}"] = "Python's own allocator is checked or replaced"
    found = slow | noisy
    if not found:
        return ok("none that slows programs down")
    seen = "; ".join(f"{name}: {words}" for name, words in found.items())
    remedy = f"`unset {' '.join(name.partition('=')[0] for name in found)}`."
    return problem(seen, remedy) if slow else warning(seen, remedy)


def compiled_cache(machine: Machine) -> Answer:
    """Whether compiled loops can be kept; elsewhere every process compiles them anew."""
    named = machine.environment.get("NUMBA_CACHE_DIR")
    folders = [Path(named)] if named else [machine.project / name / "__pycache__" for name in _KEPT_BY_NUMBA]
    closed = [str(folder) for folder in folders if not machine.writable(folder)]
    if not closed:
        return ok(named or "beside the sources")
    return warning(
        f"machine code of the loops cannot be kept in {', '.join(closed)}: they may be compiled anew in every cell",
        "Set NUMBA_CACHE_DIR to a directory that can be written.",
    )
