"""Profile of a step of our cache: run as a script, on a CUDA device or a CPU.

    python results/cache/step_profile.py [--scale full] [--cache-ratio 0.015] [--system "freq_cache[look_ahead=16]"]
    python results/cache/step_profile.py --picture results/cache/step.svg

Two tables per run, and a picture where one is asked for. Host: milliseconds per step in each part of the cache, by
thread, parts within a part subtracted; "wait for the plan" and "wait for write-backs" are what the training thread
loses to the other threads. Device (CUDA only, from torch's profiler): kernels, copies each way, how much of the copies
lies under kernels (hidden) or not (exposed), and how long the device does nothing.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib import pyplot as plt

from suite.records.environment import NO_SPEED, VIRTUAL_DEVICE, capture
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.store import write_json
from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import Trainer, load_initial_rows, multiply_in, synchronize
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.mover import BatchMover, Writer
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import D2HCopy, FetchStaging, Transfer
from systems.freq_cache.pipeline import Pipeline
from systems.registry import Variant, load

PARTS: tuple[tuple[type, str, str], ...] = (
    (Trainer, "_step", "forward, backward, dense update"),
    (CachedEmbeddingBagCollection, "forward", "embedding forward, the rest"),
    (CachedEmbeddingBagCollection, "prefetch", "announce, the rest"),
    (Pipeline, "_plans_of", "wait for the plan"),
    (Cache, "distinct", "find distinct rows"),
    (Cache, "announce", "announce to the planner"),
    (Cache, "plan", "plan"),
    (BatchMover, "send", "send ahead, the rest"),
    (FetchStaging, "add", "gather to staging, queue the copy in"),
    (BatchMover, "move", "move rows"),
    (SlotTable, "read", "read slots"),
    (SlotTable, "fill", "fill slots"),
    (SlotTable, "look_up", "look up"),
    (Transfer, "pack", "queue the copy of slot ids"),
    (Transfer, "to_device", "queue other copies in"),
    (Transfer, "to_host", "queue copies out"),
    (D2HCopy, "wait", "wait for copies out"),
    (Writer, "wait", "wait for write-backs"),
    (Writer, "_store", "write back to the slow tier"),
)
"""Methods that are timed, and what they do; all of the cache's work is in one of them."""
Spans = list[tuple[float, float]]


@dataclass
class Clock:
    """Time by thread and part, less that of parts within it."""

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    calls: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    _inner: threading.local = field(default_factory=threading.local)
    _training: int = field(default_factory=threading.get_ident)

    def timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The method, timed."""

        @functools.wraps(method)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            stack = self._inner.__dict__.setdefault("stack", [])
            stack.append(0.0)
            start = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                spent = time.perf_counter() - start
                thread = "training" if threading.get_ident() == self._training else threading.current_thread().name
                key = thread.rstrip("0123456789_"), part
                self.seconds[key] += spent - stack.pop()
                self.calls[key] += 1
                if stack:
                    stack[-1] += spent

        return wrapper


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Every part timed."""
    with ExitStack() as stack:
        for owner, name, part in PARTS:
            stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name), part)))
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile, print, and leave a record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="criteo_kaggle")
    parser.add_argument("--system", default="freq_cache", help="a variant of freq_cache")
    parser.add_argument("--scale", default="small", choices=list(SCALES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cache-ratio", type=float)
    parser.add_argument("--tf32", action="store_true", help="dense layers in TF32, on an NVIDIA device")
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, help="record of the figures, as JSON")
    parser.add_argument("--picture", type=Path, help="the threads of a step, as SVG")
    options = parser.parse_args(arguments)
    record = profiled(_cell(options), warmup=options.warmup, steps=options.steps)
    if record["environment"]["gpu"] == VIRTUAL_DEVICE:
        sys.stdout.write(f"the steps ran; {NO_SPEED}\n")
        return
    show(record)
    if options.out is not None:
        write_json(options.out, record)
    if options.picture is not None:
        draw(record, options.picture)


def profiled(cell: Cell, *, warmup: int, steps: int) -> dict[str, Any]:
    """Train `warmup` steps, then `steps` with a plain clock, then as many timed part by part, all on fresh batches."""
    multiply_in(tf32=cell.tf32)
    device = torch.device(cell.device)
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))  # the cache has threads where a core is free
    variant = Variant.parse(cell.system)
    system_class = load(variant)
    if not issubclass(system_class, CachedEmbeddingBagCollection):
        raise SystemExit(f"--system: {cell.system} is no variant of freq_cache, whose parts are timed here")
    setup = CellSetup.of(cell)
    workload, system = setup.workload, system_class(setup.spec)
    load_initial_rows(system, seed=cell.seed)
    trainer = Trainer(
        system,
        workload,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=cell.seed,
        feed=in_process(workload, device),
        total_steps=warmup + 2 * steps,
    )
    trainer.run(warmup)
    plain = trainer.run(steps)
    clock, spans = Clock(), None
    with watched(clock):
        if device.type == "cuda":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                    run = trainer.run(steps)
                    synchronize(device)
                profiler.export_chrome_trace(str(path))
                spans = device_spans(json.loads(path.read_text()))
        else:
            run = trainer.run(steps)
    counters = system.counters()
    system.close()
    return {
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "cell": cell.model_dump(mode="json"),
        "steps": steps,
        "step_ms": 1e3 * plain.duration_s / steps,
        "step_ms_while_timed": 1e3 * run.duration_s / steps,
        "hit_rate": 1 - counters.unique_misses / counters.unique_ids if counters.unique_ids else None,
        "host": [
            {"thread": thread, "part": part, "ms": 1e3 * spent / steps, "calls": clock.calls[thread, part] / steps}
            for (thread, part), spent in sorted(clock.seconds.items(), key=lambda item: (item[0][0], -item[1]))
        ],
        "device": None if spans is None else device_figures(spans, steps=steps, wall_s=run.duration_s),
    }


def device_spans(trace: dict[str, Any]) -> dict[str, Spans]:
    """Start and end in seconds of kernels and of copies each way, from a Chrome trace."""
    spans: dict[str, Spans] = {"kernels": [], "copies in": [], "copies out": []}
    for event in trace["traceEvents"]:
        kind, name = event.get("cat"), event.get("name", "")
        if kind == "kernel":
            what = "kernels"
        elif kind == "gpu_memcpy" and ("HtoD" in name or "DtoH" in name):
            what = "copies in" if "HtoD" in name else "copies out"
        else:
            continue
        spans[what].append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    return {what: united(found) for what, found in spans.items()}


def device_figures(spans: dict[str, Spans], *, steps: int, wall_s: float) -> dict[str, float]:
    """Milliseconds per step: busy with each, copies hidden under kernels and exposed, and idle."""
    kernels = spans["kernels"]
    figures = {"kernels_ms": length(kernels)}
    for what in ("copies in", "copies out"):
        name = what.replace(" ", "_")
        exposed = length(united([*spans[what], *kernels])) - length(kernels)
        figures |= {f"{name}_hidden_ms": length(spans[what]) - exposed, f"{name}_exposed_ms": exposed}
    busy = length(united([span for found in spans.values() for span in found]))
    figures["idle_ms"] = wall_s - busy
    return {name: 1e3 * seconds / steps for name, seconds in figures.items()}


def united(spans: Iterable[tuple[float, float]]) -> Spans:
    """Spans without overlap, in order."""
    made: Spans = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((start, end))
    return made


def length(spans: Spans) -> float:
    """Length of all spans together."""
    return sum(end - start for start, end in spans)


def show(record: dict[str, Any]) -> None:
    """Print the tables."""
    cell = record["cell"]
    say(
        f"{cell['system']} on {cell['device']}, {cell['workload']} {cell['scale']}: "
        f"{record['step_ms']:.2f} ms a step, {record['step_ms_while_timed']:.2f} while timed part by part"
    )
    lines = [[part["thread"], part["part"], f"{part['ms']:.3f}", f"{part['calls']:.1f}"] for part in record["host"]]
    say(pd.DataFrame(lines, columns=["thread", "part", "ms per step", "calls per step"]).to_string(index=False))
    if record["device"] is not None:
        lines = [[name.removesuffix("_ms").replace("_", " "), f"{ms:.3f}"] for name, ms in record["device"].items()]
        say(pd.DataFrame(lines, columns=["device", "ms per step"]).to_string(index=False))


def draw(record: dict[str, Any], path: Path) -> None:
    """One bar per thread: what it does in a step, the longest part first, and hatched where it waits for another."""
    parts = pd.DataFrame(record["host"]).sort_values("ms", ascending=False)
    threads = sorted(parts["thread"].unique(), key=lambda thread: thread != "training")
    with mpl.rc_context({"svg.hashsalt": "step", "font.size": 8}):
        figure, axes = plt.subplots(figsize=(9, 1.2 + 0.6 * len(threads)), layout="constrained")
        colours = dict(zip(parts["part"].unique(), plt.get_cmap("tab20").colors, strict=False))
        named: dict[str, Any] = {}
        for at, thread in enumerate(threads):
            start = 0.0
            for part, ms in parts[parts["thread"] == thread][["part", "ms"]].itertuples(index=False):
                waits = part.startswith("wait")
                style = {"facecolor": "white", "hatch": "///"} if waits else {"facecolor": colours[part]}
                named[part] = axes.barh(at, ms, left=start, edgecolor="black", linewidth=0.4, **style)
                start += ms
        axes.axvline(record["step_ms_while_timed"], color="black", linestyle=":", label="the step")
        axes.set_yticks(range(len(threads)), threads)
        axes.invert_yaxis()
        axes.set_xlabel("ms per step; white and hatched: the thread waits for another")
        axes.legend(named.values(), named, loc="upper left", bbox_to_anchor=(1, 1), fontsize=7, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def say(text: str) -> None:
    """A line on standard output."""
    sys.stdout.write(text + "\n")


def _cell(options: argparse.Namespace) -> Cell:
    planned = Options(
        systems=options.system,
        workloads=options.workload,
        scale=options.scale,
        cache_ratio=None if options.cache_ratio is None else str(options.cache_ratio),
        tf32=options.tf32,
    )
    return plan_cells(planned, device=options.device, host_bytes=1 << 40)[0][0]


if __name__ == "__main__":
    main()
