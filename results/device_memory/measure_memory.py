"""Device memory of every system at published sizes, on a device or a virtual one: run as a script.

    P=.venv-virtual-cuda/bin/python
    $P tests/virtual_cuda/run.py --memory 200000000000 $P results/device_memory/measure_memory.py
    python results/device_memory/memory_table.py --write

Each cell is built in a process of its own without first rows, trains three steps, and says what torch's allocator had
at most. Pages that nobody writes cost nothing, so 92 GB of tables need a few GB of memory (ColossalAI's ranking of all
rows of Criteo 1TB needs 15). Cells that the file has are not measured again.
"""

import argparse
import gc
import json
import math
import mmap
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from suite.records.environment import capture
from suite.records.record import Cell
from suite.records.store import write_json
from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import Trainer
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from systems.contract import EmbeddingSystem, Verdict
from systems.registry import Variant, load, parse_systems

STEPS = 3
OUT = Path(__file__).with_name("memory.json")
CELL_TIMEOUT_S = 1200
PUBLISHED = "criteo_kaggle,avazu,criteo_1tb"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and is not there yet, one cell at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="all")
    parser.add_argument("--workloads", default=PUBLISHED)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--cache-ratio", type=float, default=0.01)
    parser.add_argument("--scale", default="full")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cell", help="measure this one here, and print its figures: what a cell's process is given")
    options = parser.parse_args(arguments)
    if options.cell is not None:
        sys.stdout.write(json.dumps(measured(Cell.model_validate_json(options.cell))) + "\n")
        return 0
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: start this with tests/virtual_cuda/run.py, or on a machine that has one")
    record = _opened(options.out)
    known = {_name(one) for one in record["cells"]}
    failed = 0
    for cell in cells(options):
        row = {name: getattr(cell, name) for name in ("workload", "system", "optimizer", "cache_ratio")}
        if _name(row) in known:
            continue
        row |= _in_process(cell)
        if row["status"] in ("crashed", "timeout"):
            failed += 1
        else:
            record["cells"] = sorted([*record["cells"], row], key=_name)
            write_json(options.out, record)
        sys.stderr.write(f"{_name(row)}: {row['status']} {row.get('peak_allocated_bytes', 0) / 2**30:.2f} GiB\n")
    return 1 if failed else 0


def cells(options: argparse.Namespace) -> list[Cell]:
    """Cells to measure, at published sizes where `--scale` does not say otherwise."""
    asked = Options(
        systems=",".join(_with_managed_rows(str(one)) for one in parse_systems(options.systems)),
        workloads=options.workloads,
        scale=options.scale,
        optimizer=options.optimizer,
        cache_ratio=str(options.cache_ratio),
    )
    return plan_cells(asked, device="cuda", host_bytes=1 << 40)[0]


def _with_managed_rows(system: str) -> str:
    """Rows of UVM in managed memory: host-mapped ones, which are the default, fbgemm writes as it takes them."""
    variant = Variant.parse(system)
    if "memory" not in load(variant).variants or "memory" in dict(variant.parameters):
        return system
    return str(Variant.parse(str(replace(variant, parameters=(*variant.parameters, ("memory", "managed"))))))


def measured(cell: Cell) -> dict[str, Any]:
    """Build the system without first rows, train it, and read the allocators."""
    asked = CellSetup.of(cell)
    support = asked.system_class.support(asked.spec)
    if support.verdict is not Verdict.YES:
        return {"status": str(support.verdict), "reason": support.reason}
    device = asked.spec.device
    try:
        with lazy_host_memory():
            system = asked.system_class(asked.spec)
        trainer = Trainer(
            system,
            asked.workload,
            bottom_mlp=cell.bottom_mlp,
            top_mlp=cell.top_mlp,
            seed=cell.round_seed,
            feed=in_process(asked.workload, device),
            total_steps=STEPS,
        )
        built = torch.cuda.memory_allocated(device)
        build_peak = torch.cuda.max_memory_allocated(device)
        trainer.run(STEPS)
    except torch.cuda.OutOfMemoryError as error:
        return {"status": "oom_device", "reason": str(error).splitlines()[0]}
    gc.collect()
    return {
        "status": "ok",
        "steps": STEPS,
        "built_allocated_bytes": built,
        "build_peak_allocated_bytes": build_peak,
        "allocated_after_step_bytes": torch.cuda.memory_allocated(device),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "pinned_bytes": torch.cuda.host_memory_stats()["allocated_bytes.peak"],
        "managed_bytes": managed_bytes(),
        "slots": system.slots,
        "lookups": asked.spec.batch_lookups,
        "rows": asked.spec.rows,
        "anatomy_bytes": _anatomy(system),
    }


def managed_bytes() -> int:
    """Bytes of all live tensors in unified memory, which torch's allocator does not count."""
    found = {}
    for one in gc.get_objects():
        # of these types alone: others, such as shards, have no storage, and to ask some modules' names warns
        if type(one) in (torch.Tensor, torch.nn.Parameter) and one.device.type == "cuda" and not one.is_sparse:
            storage = one.untyped_storage()
            if storage.nbytes() and torch.ops.fbgemm.is_uvm_tensor(one):
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def _anatomy(system: EmbeddingSystem) -> dict[str, int]:
    return {f"{tier}/{purpose}": size for (tier, purpose), size in system.memory().items() if size}


def _in_process(cell: Cell) -> dict[str, Any]:
    """The figures of a cell from a process of its own."""
    command = [sys.executable, __file__, "--cell", cell.model_dump_json()]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CELL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"no figures after {CELL_TIMEOUT_S} s"}
    if done.returncode:
        return {"status": "crashed", "reason": f"its process ended with {done.returncode}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _opened(path: Path) -> dict[str, Any]:
    """Measurements in a file, which must be of this device."""
    here = capture(threads=torch.get_num_threads())
    if not path.exists():
        return {"environment": here.model_dump(mode="json"), "cells": []}
    found: dict[str, Any] = json.loads(path.read_text())
    if found["environment"]["gpu"] != here.gpu:
        raise SystemExit(f"--out: {path} is of {found['environment']['gpu']}, this is {here.gpu}: name another file")
    return found


def _name(row: dict[str, Any]) -> str:
    return f"{row['workload']} {row['optimizer']} {row['cache_ratio']:g} {row['system']}"


LARGE_BYTES = 64 << 20
"""From which a tensor on the host gets such memory."""
_NORESERVE = 0x4000  # of Linux; the module `mmap` names it from Python 3.13 on
_PR_SET_THP_DISABLE = 41


class _Unwritten(TorchFunctionMode):
    """Gives large tensors of `torch.empty` and `torch.zeros` on the host pages that are not there yet.

    Large tensors that are to be drawn at random, as torchrec draws first rows, stay as they are.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func in (torch.Tensor.uniform_, torch.nn.init.uniform_):
            drawn: Tensor = args[0] if args else options["tensor"]
            if drawn.nbytes >= LARGE_BYTES:
                return drawn
        if func in (torch.empty, torch.zeros) and not {"out", "pin_memory"} & options.keys():
            shape = torch.Size(args[0] if args and not isinstance(args[0], int) else args)
            dtype = options.get("dtype") or torch.get_default_dtype()
            size = math.prod(shape) * dtype.itemsize
            device = options.get("device")  # 0 is the first GPU
            if size >= LARGE_BYTES and (device is None or torch.device(device).type == "cpu"):
                block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                made: Tensor = torch.frombuffer(block, dtype=dtype).view(shape)
                return made.requires_grad_(options.get("requires_grad", False))
        return func(*args, **options)


@contextmanager
def lazy_host_memory() -> Iterator[None]:
    """While a system is built, have the host promise more memory than it has, in small pages, and write no rows."""
    disable_huge_pages()
    real = mmap.mmap

    def unreserved(fileno: int, length: int, **options: Any) -> mmap.mmap:
        flags = options.pop("flags", mmap.MAP_SHARED)
        return real(fileno, length, flags=flags | (_NORESERVE if fileno == -1 else 0), **options)

    with patch.object(mmap, "mmap", unreserved), _Unwritten():
        yield


def disable_huge_pages() -> None:
    """Keep to small pages in this process: a row that is written would bring 2 MiB with it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "huge pages cannot be switched off for this process")


if __name__ == "__main__":
    sys.exit(main())
