"""The tables and the figure of device memory, from `memory.json`: run as a script.

python results/device_memory/memory_table.py          # print the tables
python results/device_memory/memory_table.py --write  # write them, the figure, and what the pages have of them
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from suite.records.environment import VIRTUAL_DEVICE
from suite.records.groups import PublishedRow, published_rows
from suite.tables.formatting import BLACK, COLOURS, GREY, look
from workloads.schema import SCHEMAS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GIB = 2**30
LABEL = "Virtual device: exact for torch's allocator, without workspaces"
SETTINGS = (("sgd", 0.01), ("rowwise_adagrad", 0.01), ("sgd", 0.015))
OURS = {"ColossalAI": "colossalai_cache", "torchrec": "full_gpu"}
"""Published methods, and the system here that keeps the same rows on the device."""
CARD_BYTES = 80 * GIB
"""Memory of the GPUs that the published rows were measured on."""
ORDER = (
    *("full_gpu", "reference", "freq_cache", "freq_cache[look_ahead=4]", "freq_cache[policy=lfu]", "colossalai_cache"),
    *("fbgemm_uvm_caching", "torchrec_uvm_caching", "hot_split", "fbgemm_uvm", "torchrec_uvm", "cpu_embeddings"),
)
Row = dict[str, Any]


def rows() -> list[Row]:
    """Every measured cell, by the name of its system without the kind of unified memory."""
    content = json.loads((HERE / "memory.json").read_text(encoding="utf-8"))
    assert content["environment"]["gpu"] == VIRTUAL_DEVICE
    return [row | {"name": row["system"].replace("[memory=managed]", "")} for row in content["cells"]]


def find(found: Iterable[Row], workload: str, name: str, optimizer: str = "sgd", ratio: float = 0.01) -> Row | None:
    """A cell, or None."""
    sought = (workload, name, optimizer, ratio)
    cells = (row for row in found if (row["workload"], row["name"], row["optimizer"], row["cache_ratio"]) == sought)
    return next(cells, None)


def read_as_published(row: Row) -> int:
    """Bytes that the published scripts' reading after the last step gives: what is allocated then, not the peak.

    There ColossalAI's slots keep the sparse gradient of the last batch: a row and an int64 per id.
    """
    kept = row["lookups"] * (4 * 128 + 8) if row["name"] == OURS["ColossalAI"] else 0
    return int(row["allocated_after_step_bytes"]) + kept


def gib(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / GIB:.2f}"


def published_table(found: Sequence[Row]) -> str:
    """Published figures and ours that are read alike."""
    heads = ["dataset", "published row", "here", "allocated, published", "here, read alike", "here, peak"]
    lines = [[*heads, "reserved, published", "here, peak"]]
    for workload in dict.fromkeys(row["workload"] for row in _in_order(found)):
        for theirs in published_rows(workload):
            row = find(found, workload, OURS[theirs.system])
            if row is None or row["status"] != "ok":
                continue
            lines.append(
                [
                    SCHEMAS[workload].title,
                    theirs.system,
                    f"`{row['name']}`",
                    f"{theirs.gpu_allocated_gb:g}",
                    gib(read_as_published(row)),
                    gib(row["peak_allocated_bytes"]),
                    f"{theirs.gpu_reserved_gb:g}",
                    gib(row["peak_reserved_bytes"]),
                ]
            )
    return _markdown(lines, text=3)


def systems_table(found: Sequence[Row]) -> str:
    """Peaks of every system with SGD at 1 %, and what they are made of."""
    heads = ["dataset", "system", "rows", "index", "staging", "peak allocated", "peak reserved", "pinned", "managed"]
    lines = [heads]
    for row in _in_order(found):
        if (row["optimizer"], row["cache_ratio"]) != SETTINGS[0] or row["status"] != "ok":
            continue
        parts = [row["anatomy_bytes"].get(f"device/{purpose}", 0) for purpose in ("rows", "index", "staging")]
        peaks = [row[name] for name in ("peak_allocated_bytes", "peak_reserved_bytes", "pinned_bytes", "managed_bytes")]
        name = f"`{row['name']}`" + ("" if row["peak_reserved_bytes"] <= CARD_BYTES else " (more than 80 GB)")
        lines.append([SCHEMAS[row["workload"]].title, name, *map(gib, (*parts, *peaks))])
    return _markdown(lines, text=2)


def settings_table(found: Sequence[Row]) -> str:
    """Peaks of the systems that have a cache, and of the baseline, in every setting."""
    named = [f"{optimizer}, {100 * ratio:g} %" for optimizer, ratio in SETTINGS]
    lines = [["dataset", "system", *(f"{name}: {what}" for name in named for what in ("allocated", "reserved"))]]
    pairs = dict.fromkeys(
        (row["workload"], row["name"])
        for row in _in_order(found)
        if (row["optimizer"], row["cache_ratio"]) in SETTINGS[1:]
    )
    for workload, name in pairs:
        cells = [find(found, workload, name, optimizer, ratio) for optimizer, ratio in SETTINGS]
        shown = [
            gib(row[kind]) if row is not None and row["status"] == "ok" else "n/a"
            for row in cells
            for kind in ("peak_allocated_bytes", "peak_reserved_bytes")
        ]
        lines.append([SCHEMAS[workload].title, f"`{name}`", *shown])
    return _markdown(lines, text=2)


def page(found: Sequence[Row]) -> str:
    """All tables."""
    return (
        f"# Device memory at published sizes\n\n{LABEL}. GiB; dim 128, batch 16,384, three training steps.\n\n"
        f"## Beside the published figures (arXiv 2208.05321): SGD, cache ratio 1 %\n\n{published_table(found)}\n"
        f"## Every system: SGD, cache ratio 1 %\n\n{systems_table(found)}\n"
        f"## Optimizers and cache ratios, peaks\n\n{settings_table(found)}\n"
        "n/a: not measured. ColossalAI's cache trains with SGD alone, and `full_gpu` has no cache.\n"
    )


def figure(found: Sequence[Row]) -> Figure:
    """A panel per dataset: peaks allocated and reserved of every system, and the published figures."""
    chosen = [row for row in _in_order(found) if (row["optimizer"], row["cache_ratio"]) == SETTINGS[0]]
    names = list(dict.fromkeys(row["name"] for row in chosen))
    places = {name: -place for place, name in enumerate(names)}
    workloads = list(dict.fromkeys(row["workload"] for row in chosen))
    made = Figure(figsize=(9.5, 3.6), layout="constrained")
    panels = made.subplots(1, len(workloads), sharey=True, squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        mine = [row for row in chosen if row["workload"] == workload and row["status"] == "ok"]
        at = [places[row["name"]] for row in mine]
        peaks, reserved = (
            [row[name] / GIB for row in mine] for name in ("peak_allocated_bytes", "peak_reserved_bytes")
        )
        axes.plot(peaks, at, linestyle="", marker="o", markersize=6, color=COLOURS[0], label="peak allocated")
        axes.plot(reserved, at, linestyle="", marker="|", markersize=9, color=BLACK, label="peak reserved")
        for theirs in published_rows(workload):
            _published(axes, theirs, places[OURS[theirs.system]])
        axes.set_xscale("log")
        axes.set_xlim(0.2, 200)
        axes.set_xticks([0.3, 1, 3, 10, 30, 100], ["0.3", "1", "3", "10", "30", "100"])
        axes.set_title(SCHEMAS[workload].title, fontsize=9)
        axes.set_xlabel("GiB of device memory")
        axes.set_yticks(list(places.values()), list(places), fontsize=7)
    panels[-1].axvline(CARD_BYTES / GIB, color=GREY, linewidth=1, linestyle="--", label="the published GPU, 80 GB")
    handles, labels = panels[-1].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    made.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=5, fontsize=7)
    made.suptitle(f"{LABEL}. SGD, cache ratio 1 %", fontsize=9)
    return made


def _published(axes: Any, theirs: PublishedRow, place: float) -> None:
    pair = (theirs.gpu_allocated_gb, theirs.gpu_reserved_gb)
    axes.plot(
        pair, (place, place), linestyle="", marker="D", markersize=4, markerfacecolor="white", color=COLOURS[1],
        label="published, allocated and reserved",
    )  # fmt: skip


def _in_order(found: Sequence[Row]) -> list[Row]:
    """Sort by dataset as schemas list them, then as tables list systems."""
    datasets = list(SCHEMAS)
    return sorted(found, key=lambda row: (datasets.index(row["workload"]), ORDER.index(row["name"])))


def _markdown(lines: Sequence[Sequence[str]], *, text: int) -> str:
    rules = ["---"] * text + ["--:"] * (len(lines[0]) - text)
    return "".join("| " + " | ".join(line) + " |\n" for line in (lines[0], rules, *lines[1:]))


PAGES = {ROOT / "README.md": published_table, ROOT / "docs" / "virtual-cuda.md": systems_table}
"""Pages with a block of these tables, and which."""


def in_page(text: str, table: str) -> str:
    """A page with its block replaced."""
    begin, end = "<!-- device memory: begin -->\n", "<!-- device memory: end -->\n"
    before, rest = text.split(begin)
    return f"{before}{begin}{table}{end}{rest.split(end)[1]}"


def main() -> None:
    """Print the tables, or write everything."""
    found = rows()
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write(page(found))
        return
    (HERE / "device_memory.md").write_text(page(found), encoding="utf-8")
    with look("device_memory"):
        figure(found).savefig(HERE / "device_memory.svg", metadata={"Date": None})
    for path, table in PAGES.items():
        path.write_text(in_page(path.read_text(encoding="utf-8"), table(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
