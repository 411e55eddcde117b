"""The tables of `docs/simulation.md` and `docs/torchrec-planner.md`, from the records in `results/simulate`.

python docs/figures/simulation_tables.py          # print them
python docs/figures/simulation_tables.py --write  # put them into the pages
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from suite.simulate.results import Simulation

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "simulate" / "criteo_kaggle" / "simulation.json"
EPOCH = ROOT / "results" / "simulate" / "epoch" / "simulation.json"
PAGE = ROOT / "docs" / "simulation.md"
PLANNER_PAGE = ROOT / "docs" / "torchrec-planner.md"
PLANNER_RECORD = ROOT / "results" / "simulate" / "torchrec_planner.json"
CANNOT = "n/a"


def optimal(record: Path) -> str:
    """Misses over the optimum: a line per policy, a column per cache ratio; below, what the bounds miss."""
    simulation = Simulation.model_validate_json(record.read_text(encoding="utf-8"))
    ratios = simulation.configuration.cache_ratios
    cells = {(row.policy, row.cache_ratio): row for row in simulation.rows}
    lines = [
        "| policy | " + " | ".join(f"{100 * ratio:g} %" for ratio in ratios) + " |",
        "|---" + "|--:" * len(ratios) + "|",
    ]
    for policy in dict.fromkeys(row.policy for row in simulation.rows):
        if policy.startswith(("belady", "compulsory")):
            continue
        shares = [cells[policy, ratio].of_least_misses for ratio in ratios]
        shown = [CANNOT if share is None else f"{100 * share:.0f}" for share in shares]
        lines.append(f"| `{policy}` | " + " | ".join(shown) + " |")
    for bound in ("belady", "compulsory"):
        found = [cells[bound, ratio].traffic for ratio in ratios]
        misses = [CANNOT if one is None else f"{one.unique_misses / one.batches:,.0f}" for one in found]
        lines.append(f"| `{bound}`, misses per batch | " + " | ".join(misses) + " |")
    return "\n".join(lines) + "\n"


def planner() -> str:
    """Misses that torchrec's planner expects, those of its proposal, and those of our division of as many slots."""
    lines = [
        "| workload | memory | rows on the device | expects | has | in one cache | our division | in one cache |",
        "|---" + "|--:" * 7 + "|",
    ]
    for workload, points in json.loads(PLANNER_RECORD.read_text(encoding="utf-8"))["results"].items():
        for point in points:
            theirs, ours = point["torchrec"], point["ours"]
            misses = [theirs["expected_misses"], theirs["misses"], theirs["misses_in_one_fbgemm_cache"]]
            misses += [ours["misses"], ours["misses_in_one_fbgemm_cache"]]
            cells = [workload, f"{point['hbm_bytes'] / 2**30:g} GiB", f"{100 * point['share_of_rows']:.2g} %"]
            lines.append("| " + " | ".join([*cells, *(f"{count:,.0f}" for count in misses)]) + " |")
    return "\n".join(lines) + "\n"


TABLES = {
    "epoch": (PAGE, partial(optimal, EPOCH)),
    "optimal": (PAGE, partial(optimal, RECORD)),
    "planner": (PLANNER_PAGE, planner),
}


def block(text: str, name: str) -> tuple[str, str, str]:
    """What stands before a block of the page, in it, and behind it."""
    before, rest = text.split(f"<!-- {name}: begin -->\n")
    inside, after = rest.split(f"<!-- {name}: end -->\n")
    return f"{before}<!-- {name}: begin -->\n", inside, f"<!-- {name}: end -->\n{after}"


def main() -> None:
    """Print the tables, or write them into their pages."""
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write("\n".join(table() for _, table in TABLES.values()))
        return
    for name, (page, table) in TABLES.items():
        before, _, after = block(page.read_text(encoding="utf-8"), name)
        page.write_text(f"{before}{table()}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
