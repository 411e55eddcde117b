"""`docs/datasets.md`, `docs/synthetic.md`, `docs/tracks.md` and `docs/protocol.md`: figures are the records'."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("datasets", "describe", "synthetic", "tracks", "protocol")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_programs_named_by_the_pages_are_there() -> None:
    named = {found for name in PAGES for found in re.findall(r"results/\w+/\w+\.py", page(name))}
    assert named
    assert all((ROOT / path).exists() for path in named)


def test_misses_under_tracks_are_those_of_the_record() -> None:
    results = json.loads((ROOT / "results" / "tracks" / "misses.json").read_text())["results"]
    section = page("tracks").split("## What each track does to a cache")[1].split("##")[0]
    rows = re.findall(r"^\| `(\S+?)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == len(results)
    for name, cells in rows:
        found = results[name if name in results else f"criteo_kaggle{name}"]
        expected = []
        for policy in ("static", "static, prefix", "lfu", "lru"):
            misses, relative = found[policy]["unique_misses"], found[policy]["relative_to_plain"]
            expected.append(f"{misses:,.0f}" + (f" ({relative:.2f})" if name.startswith("@") else ""))
        assert cells.split(" | ") == expected


def test_learnt_aurocs_are_those_of_the_record() -> None:
    found = json.loads((ROOT / "results" / "streams" / "learnable.json").read_text())
    section = page("synthetic").split("AUROC after one epoch")[1].split("##")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == 3
    for dataset, cells in rows:
        runs = {run["kind"]: run for run in found if run["dataset"] == dataset}
        learnt, control = runs["all rows"], runs["no embeddings"]
        assert cells.split(" | ") == [f"{x:.4f}" for x in (learnt["optimum"], learnt["auroc"], control["auroc"])]
        assert learnt["gap"] < 0.02
        assert learnt["auroc"] - control["auroc"] > 0.03


def test_what_sgd_leaves_is_that_of_its_record() -> None:
    found = json.loads((ROOT / "results" / "streams" / "learnable_sgd.json").read_text())
    gaps = [f"{run['gap']:.3f}" for run in found if run["kind"] == "all rows"]
    assert "SGD at its rate of 1 ends {}, {} and {} below the optimum".format(*gaps) in page("synthetic")
