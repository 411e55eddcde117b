"""The tables of `docs/simulation.md`, from the records in `results/simulate` and `results/published`.

python docs/figures/simulation_tables.py          # print them
python docs/figures/simulation_tables.py --write  # put them into the page
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from suite.records.groups import Group, group_records
from suite.records.store import RecordStore
from suite.simulate.results import Simulation
from suite.tables.rows import Row, merged_rows

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "simulate" / "criteo_kaggle" / "simulation.json"
PUBLISHED = ROOT / "results" / "published"
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


def accuracy() -> str:
    """Predicted and measured iterations per second of the published cells, and the median error."""
    groups = group_records(RecordStore(PUBLISHED).load_all()[0])
    titles = list(dict.fromkeys(group.title for group in groups))
    lines = [
        "Iterations per second, predicted / measured (median over rounds) and the error of the time of a step:",
        "",
        "| system | " + " | ".join(titles) + " |",
        "|---" + "|---" * len(titles) + "|",
    ]
    rows = {(group.title, _label(group, row)): row for group in groups for row in merged_rows(group)}
    errors: dict[bool, list[float]] = {True: [], False: []}
    for label in sorted(dict.fromkeys(label for _, label in rows), key=lambda label: "tier=file" in label):
        cells = []
        for title in titles:
            row = rows.get((title, label))
            if row is None or row.prediction_error is None or row.steps_per_s is None:
                cells.append(CANNOT)
                continue
            errors["tier=file" in label].append(abs(row.prediction_error))
            cells.append(
                f"{row.predicted_steps_per_s:.1f} / {row.steps_per_s:.1f} ({100 * row.prediction_error:+.0f} %)"
            )
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    cell, environment = groups[0].cell, groups[0].environment
    lines += [
        "",
        f"Median absolute error: {_median([*errors[False], *errors[True]])}; {_median(errors[False])} with all rows in "
        f"memory, {_median(errors[True])} with rows in a file (scale {cell.scale}, {cell.optimizer}, "
        f"{environment.cpu}, {environment.threads} threads).",
        "",
    ]
    return "\n".join(lines)


def _label(group: Group, row: Row) -> str:
    """System, with its budget where it has one instead of a cache ratio."""
    budget = group.cell.device_budget_bytes
    return f"`{row.system}`" + ("" if budget is None else f", {budget / 2**20:g} MiB")


def _median(errors: list[float]) -> str:
    return f"{100 * statistics.median(errors):.1f} % over {len(errors)} cells"


TABLES = {"optimal": optimal, "accuracy": accuracy}


def block(text: str, name: str) -> tuple[str, str, str]:
    """What stands before a block of the page, in it, and behind it."""
    before, rest = text.split(f"<!-- {name}: begin -->\n")
    inside, after = rest.split(f"<!-- {name}: end -->\n")
    return f"{before}<!-- {name}: begin -->\n", inside, f"<!-- {name}: end -->\n{after}"


def main() -> None:
    """Print the tables, or write them into the page."""
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write("\n".join(table() for table in TABLES.values()))
        return
    for name, table in TABLES.items():
        before, _, after = block(PAGE.read_text(encoding="utf-8"), name)
        PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
