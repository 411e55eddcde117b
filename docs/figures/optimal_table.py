"""The table of misses over the optimum in `docs/simulation.md`, from the record in `results/simulate/criteo_kaggle`.

python docs/figures/optimal_table.py          # print it
python docs/figures/optimal_table.py --write  # put it into the page
"""

from __future__ import annotations

import sys
from pathlib import Path

from suite.simulate.results import Simulation

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "simulate" / "criteo_kaggle" / "simulation.json"
PAGE = ROOT / "docs" / "simulation.md"
BEGIN, END = "<!-- optimal: begin -->\n", "<!-- optimal: end -->\n"
CANNOT = "n/a"


def table() -> str:
    """One line per policy, one column per cache ratio, and how many rows the optimum misses."""
    simulation = Simulation.model_validate_json(RECORD.read_text(encoding="utf-8"))
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


def main() -> None:
    """Print the table, or write it into the page."""
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write(table())
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
