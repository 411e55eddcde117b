"""The workflows of continuous integration call what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from suite.__main__ import COMMANDS

PROJECT = Path(__file__).resolve().parents[2]
WORKFLOWS = PROJECT / ".github" / "workflows"


def steps() -> list[dict[str, Any]]:
    """The steps of all workflows."""
    files = sorted(WORKFLOWS.glob("*.yml"))
    assert files
    workflows = [yaml.safe_load(path.read_text()) for path in files]
    return [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]


def commands() -> str:
    return "\n".join(str(step.get("run", "")) for step in steps())


def test_workflow_calls_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), flags=re.MULTILINE))
    called = set(re.findall(r"\bmake ([a-z]+)", commands()))
    assert called
    assert called <= targets


def test_workflow_calls_commands_that_exist() -> None:
    called = set(re.findall(r"-m suite ([a-z]+)", commands()))
    assert called
    assert called <= set(COMMANDS)


def test_workflow_calls_files_that_exist() -> None:
    called = re.findall(r"\b((?:tests|results|requirements)/[\w/.-]+\.(?:py|json|txt))", commands())
    assert called
    assert all((PROJECT / path).is_file() for path in called)


def test_oldest_versions_of_the_workflow_are_those_that_the_project_allows() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    allowed = "\n".join([*project["dependencies"], *project["optional-dependencies"]["cpu"]])
    installed = dict(re.findall(r"([\w-]+)==(\d+\.\d+)", (WORKFLOWS / "oldest.yml").read_text()))
    assert set(installed) == {"torch", "fbgemm-gpu-cpu", "torchrec"}
    for name, version in installed.items():
        assert f"{name}>={version}," in allowed, name
