"""The table of `docs/simulation.md`, from the record in `results/simulate`.

python docs/figures/simulation_tables.py          # print it
python docs/figures/simulation_tables.py --write  # put it into the page
"""

from __future__ import annotations

import sys
from pathlib import Path

from suite.simulate.results import Simulation

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "simulate" / "criteo_kaggle" / "simulation.json"
PAGE = ROOT / "docs" / "simulation.md"
CANNOT = "n/a"


def optimal() -> str:
    """Misses over the optimum: a line per policy, a column per cache ratio; below, what the bounds miss."""
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


TABLES = {"optimal": optimal}


def block(text: str, name: str) -> tuple[str, str, str]:
    """What stands before a block of the page, in it, and behind it."""
    before, rest = text.split(f"<!-- {name}: begin -->\n")
    inside, after = rest.split(f"<!-- {name}: end -->\n")
    return f"{before}<!-- {name}: begin -->\n", inside, f"<!-- {name}: end -->\n{after}"


def main() -> None:
    """Print the table, or write it into the page."""
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write("\n".join(table() for table in TABLES.values()))
        return
    for name, table in TABLES.items():
        before, _, after = block(PAGE.read_text(encoding="utf-8"), name)
        PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
