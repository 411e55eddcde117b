"""`docs/adding-a-system.md`, carried out: one file, one registry line, and the new system runs verified."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-system.md"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the page's two edits made."""
    module, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    copy = tmp_path_factory.mktemp("tree")
    for package in ("suite", "systems", "workloads"):
        # with what is compiled, so that nothing has to be again, but for what others are writing just now
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.tmp.*", "*.pyc.*"))
    shutil.copy(ROOT / "run_bench.py", copy)
    (copy / "systems" / "one_table.py").write_text(module)
    registry = copy / "systems" / "registry.py"
    text = registry.read_text()
    opening = "SYSTEMS: dict[str, str] = {\n"
    assert text.count(opening) == 1
    registry.write_text(text.replace(opening, opening + line))
    return copy


def test_the_system_of_the_page_runs_verified_after_one_file_and_one_line(tree: Path) -> None:
    command = re.search(r"```sh\npython (.*?)\n```", PAGE.read_text())
    assert command is not None
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *command[1].split(), "--device", "cpu"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(path.read_text()) for path in (tree / "results" / "records").glob("*.json")]
    by_system = {record["cell"]["system"]: record for record in records}
    assert by_system.keys() == {"reference", "one_table"}
    checks = by_system["one_table"]["verification"]["checks"]
    assert checks
    assert all(check["passed"] for check in checks)
    auroc = {name: record["measurement"]["quality"]["auroc"] for name, record in by_system.items()}
    assert auroc["one_table"] == pytest.approx(auroc["reference"], abs=1e-4)
    assert "one_table" in done.stdout
