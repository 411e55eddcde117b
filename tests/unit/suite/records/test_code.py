"""Which changes of code make a measured cell undone."""

from pathlib import Path

import pytest

from suite.records.environment import code_digest, system_digest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for package in ("suite", "systems", "workloads"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_code_digest_changes_with_any_source_file_its_name_and_its_content(project: Path) -> None:
    digests = [code_digest(project)]
    for file, text in (("suite/__init__.py", "x = 1\n"), ("suite/__init__.py", "x = 2\n"), ("systems/a.py", "")):
        write(project / file, text)
        digests.append(code_digest(project))
    write(project / "workloads/streams/profiles.json", "{}")
    digests.append(code_digest(project))
    (project / "systems" / "a.py").rename(project / "systems" / "b.py")
    digests.append(code_digest(project))
    assert len(set(digests)) == len(digests)
    write(project / "suite" / "__pycache__" / "x.pyc", "1")
    write(project / "README.md", "text")
    assert code_digest(project) == digests[-1]


@pytest.mark.parametrize(
    ("file", "undone"),
    [
        ("suite/tables/new.py", False),
        ("suite/advise/hardware/new.json", False),
        ("suite/run/tables.py", True),
        ("systems/report/new.py", True),
    ],
)
def test_presenting_code_is_told_by_its_folder_and_never_by_its_name(project: Path, file: str, undone: bool) -> None:
    before = code_digest(project)
    write(project / file, "1")
    assert (code_digest(project) != before) is undone


# Systems of one's own


def test_digest_of_a_system_of_ones_own_changes_with_its_module_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path / "digested_alone.py", "x = 1\n")
    before = system_digest("digested_alone:Mine[policy=lfu]")
    write(tmp_path / "digested_stranger.py", "")
    assert system_digest("digested_alone:Other") == before
    file.write_text("x = 2\n")
    assert system_digest("digested_alone:Mine") not in (before, None)


def test_digest_of_a_system_in_a_package_covers_the_whole_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("__init__", "cache", "policies/lfu"):
        write(tmp_path / "digested_package" / f"{name}.py", "")
    before = system_digest("digested_package:Mine")
    write(tmp_path / "digested_package" / "notes.txt", "1")
    assert system_digest("digested_package.cache:Mine") == before
    write(tmp_path / "digested_package" / "policies" / "lfu.py", "x = 1\n")
    assert system_digest("digested_package:Mine") not in (before, None)


def test_system_without_a_module_of_its_own_or_whose_module_cannot_be_found_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "digested_broken" / "__init__.py", "raise SystemError")
    assert system_digest("freq_cache[policy=lfu]") is None
    assert system_digest("no_such_module_anywhere:Mine") is None
    assert system_digest("digested_broken.cache:Mine") is None
    write(tmp_path / "digested_needy.py", "import no_such_package_anywhere\n")
    assert system_digest("digested_needy:Mine") is not None  # whether it can be imported or not
