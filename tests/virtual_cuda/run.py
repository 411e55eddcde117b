#!/usr/bin/env python3
"""Run a command beside a virtual CUDA device, which gcc builds first (a second). See docs/virtual-cuda.md.

.venv-virtual-cuda/bin/python tests/virtual_cuda/run.py --late .venv-virtual-cuda/bin/python -m pytest -q tests/contract
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = {
    "libcudart.so.13": ("runtime.c", "streams.c", "refused.c"),
    "libcuda.so.1": ("driver.c",),
    "libnvidia-ml.so.1": ("nvml.c",),
}
"""In the order in which they are preloaded."""
GCC = ["gcc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-shared", "-fPIC"]
"""The interface is CUDA's: most functions of it have parameters that a virtual device has no use for."""


def build(folder: Path) -> list[str]:
    """Build the libraries with the headers of CUDA beside this Python's torch. Their paths."""
    headers = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "include")
    if not (headers / "cuda_runtime_api.h").is_file():
        raise SystemExit(
            f"{headers} has no cuda_runtime_api.h: run this with a Python that has torch's build for CUDA 13"
        )
    for name, sources in LIBRARIES.items():
        files = ["-o", str(folder / name), *(str(HERE / source) for source in sources)]
        command = [*GCC, f"-I{HERE}", f"-I{headers}", f"-Wl,-soname,{name}", *files]
        if name.startswith("libcudart"):
            command += [f"-Wl,--version-script={HERE / 'libcudart.map'}", "-lpthread", "-ldl"]
        subprocess.run(command, check=True)
    return [str(folder / name) for name in LIBRARIES]


def main() -> int:
    """Build, run, and end as the command did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late", action="store_true", help="copies and kernels wait in their streams")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        choices=range(16),
        metavar="0 to 15",
        help="which streams are late, by its lowest bits; from 8 on these go on by chance [0: all]",
    )
    parser.add_argument("--memory", type=int, metavar="BYTES", help="what the device has [80 GiB]")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="virtual-cuda-") as folder:
        report = Path(folder, "in_vain")
        paths = [str(HERE / "site"), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "VCUDA": "1",
            "LD_PRELOAD": ":".join(build(Path(folder))),
            "PYTHONPATH": os.pathsep.join(paths),
            "TRITON_INTERPRET": "1",
            "VCUDA_REPORT": str(report),
        }
        if options.late:
            environment["VCUDA_LATE"] = str(options.seed)
        if options.memory:
            environment["VCUDA_MEMORY"] = str(options.memory)
        code = subprocess.run(options.command, check=False, env=environment).returncode
        if report.exists():
            sys.stderr.write("Kernels that were launched in vain, so no result is to be believed:\n")
            sys.stderr.write("\n".join(sorted(set(report.read_text().splitlines()))) + "\n")
        return code or int(report.exists())


if __name__ == "__main__":
    sys.exit(main())
