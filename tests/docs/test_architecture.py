"""`README.md` and `docs/architecture.md`: the tree has every room, and the core is as small as they say."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("suite", "systems", "workloads")


def rooms_of_the_tree() -> set[str]:
    """Folders of the README's tree, by their path."""
    lines = re.findall(r"^( *)([\w/<>]+)/ ", README.split("## The code")[1].split("```")[1], re.MULTILINE)
    rooms, above = set(), []
    for indent, name in lines:
        above = [*above[: len(indent) // 2], name]
        rooms.add("/".join(above))
    return rooms


def test_tree_of_the_front_page_has_every_room_of_the_packages() -> None:
    there = {
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if len(path.parent.relative_to(ROOT).parts) <= 3
    }
    below_report = {room for room in there if room.startswith("suite/report/")}  # its line names them
    below = {"suite/simulate/models"}
    listed = rooms_of_the_tree()
    assert there - below_report - below <= listed
    assert {room for room in listed if room.startswith(PACKAGES) and not (ROOT / room).is_dir()} == set()
    for room in below_report | below:
        assert f"{Path(room).name}/" in README


def test_core_is_12_files_at_most_and_3500_lines() -> None:
    section = ARCHITECTURE.split("## The core")[1].split("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    assert f"They are {len(files)}, with at most 3,500 lines together" in " ".join(ARCHITECTURE.split())
    assert f"{len(files)} files, at most 3,500 lines" in README
    assert len(files) <= 12
    assert sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files) <= 3500


def test_files_named_by_the_pages_are_there() -> None:
    there = [str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for file in re.findall(r"(?<![\w/])([\w/]+\.py)\b", ARCHITECTURE + README.split("## The code")[1]):
        assert (ROOT / file).is_file() or any(path.endswith(f"/{file}") or path == file for path in there), file
