"""The workflows of continuous integration call what there is."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from suite.__main__ import COMMANDS
from suite.doctor import TRIPLES

PROJECT = Path(__file__).resolve().parents[2]
WORKFLOWS = PROJECT / ".github" / "workflows"


def commands() -> str:
    """What the steps of all workflows run."""
    jobs = [job for path in WORKFLOWS.glob("*.yml") for job in yaml.safe_load(path.read_text())["jobs"].values()]
    return "\n".join(str(step.get("run", "")) for job in jobs for step in job["steps"])


def test_workflow_calls_targets_commands_and_files_that_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    files = r"\b((?:tests|results|requirements)/[\w/.-]+\.(?:py|json|txt))"
    targets, called, paths = (
        set(re.findall(pattern, commands())) for pattern in (r"\bmake ([a-z]+)", r"-m suite ([a-z]+)", files)
    )
    assert targets
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    assert called
    assert called <= set(COMMANDS)
    assert paths
    assert all((PROJECT / path).is_file() for path in paths)


def triples() -> dict[str, dict[str, str]]:
    """By torch's minor version, the pins of `requirements/torch-*.txt`, the oldest first."""
    files = {path.stem.removeprefix("torch-"): path.read_text() for path in PROJECT.glob("requirements/torch-*.txt")}
    return {
        torch: dict(re.findall(r"^([\w-]+)==([\d.]+)$", files[torch], flags=re.MULTILINE))
        for torch in sorted(files, key=Version)
    }


def test_oldest_and_newest_versions_that_the_project_allows_are_those_that_the_workflow_tests() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    allowed = {
        asked.name: asked for asked in map(Requirement, [*project["dependencies"], *extras["cpu"], *extras["cuda"]])
    }
    oldest, *_, newest = triples()
    workflow = yaml.safe_load((WORKFLOWS / "versions.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["torch"] == [oldest, newest]
    for name in ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"):
        lowest, highest = (Version(triples()[torch][name]) for torch in (oldest, newest))
        beyond = f"<{highest.major}.{highest.minor + 1}"
        assert allowed[name].specifier == SpecifierSet(f">={lowest.major}.{lowest.minor},{beyond}"), name
    assert any(bound.operator == "<" for bound in allowed["numba"].specifier)
    for name in ("numba", "torch", "torchrec"):
        assert version(name).partition("+")[0] in allowed[name].specifier


def test_triples_are_those_that_the_doctor_knows() -> None:
    for torch, pins in triples().items():
        assert set(pins) == {"torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchrec", "triton"}
        assert pins["torch"].startswith(f"{torch}.")
        assert pins["fbgemm-gpu"] == pins["fbgemm-gpu-cpu"]
    minors = {
        torch: tuple(pins[name].rpartition(".")[0] for name in ("fbgemm-gpu", "torchrec"))
        for torch, pins in triples().items()
    }
    assert minors.items() <= TRIPLES.items()
    assert (min(TRIPLES, key=Version), max(TRIPLES, key=Version)) == (
        min(minors, key=Version),
        max(minors, key=Version),
    )


def test_make_installs_a_triple_that_there_is(tmp_path: Path) -> None:
    for build in ("cpu", "cuda"):
        setup = ["make", "-n", "setup", f"BUILD={build}", f"VENV={tmp_path}"]
        environment = {name: value for name, value in os.environ.items() if name not in ("TORCH", "MAKEFLAGS")}
        shown = subprocess.run(
            setup, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        constrained = re.findall(r"-c (requirements/torch-\S+\.txt)", shown.stdout)
        assert len(constrained) == shown.stdout.count("-m pip install")
        assert all((PROJECT / path).is_file() for path in constrained)
