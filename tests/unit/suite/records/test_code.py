"""Which changes of code make a measured cell undone."""

from pathlib import Path

import pytest

from suite.records.code import code_digest, system_digest


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


@pytest.mark.parametrize(
    ("file", "text"),
    [("suite/__init__.py", "x = 1\n"), ("systems/new.py", ""), ("workloads/streams/profiles.json", "{}")],
)
def test_code_digest_changes_with_any_source_file(project: Path, file: str, text: str) -> None:
    before = code_digest(project)
    write(project / file, text)
    assert code_digest(project) != before


def test_code_digest_changes_when_a_file_keeps_its_length(project: Path) -> None:
    write(project / "systems" / "a.py", "x = 1\n")
    before = code_digest(project)
    write(project / "systems" / "a.py", "x = 2\n")
    assert code_digest(project) != before


def test_code_digest_changes_when_a_file_is_renamed(project: Path) -> None:
    (project / "systems" / "a.py").write_text("x = 1\n")
    before = code_digest(project)
    (project / "systems" / "a.py").rename(project / "systems" / "b.py")
    assert code_digest(project) != before


def test_code_digest_ignores_what_is_not_source(project: Path) -> None:
    before = code_digest(project)
    (project / "suite" / "__pycache__").mkdir()
    (project / "suite" / "__pycache__" / "x.pyc").write_bytes(b"1")
    (project / "README.md").write_text("text")
    assert code_digest(project) == before


@pytest.mark.parametrize(
    ("file", "undone"),
    [
        ("suite/run/console/live.py", False),
        ("suite/tables/new.py", False),
        ("suite/report/page/page.py", False),
        ("suite/advise/hardware/new.json", False),
        ("suite/run/tables.py", True),
        ("suite/simulate/new.py", True),
        ("systems/report/new.py", True),
        ("systems/freq_cache/frames.py", True),
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


@pytest.mark.parametrize("system", ["digested_package:Mine", "digested_package.cache:Mine"])
def test_digest_of_a_system_in_a_package_covers_the_whole_package(tmp_path, monkeypatch, system):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("__init__", "cache", "policies/lfu"):
        write(tmp_path / "digested_package" / f"{name}.py", "")
    before = system_digest(system)
    write(tmp_path / "digested_package" / "notes.txt", "1")
    assert system_digest(system) == before
    write(tmp_path / "digested_package" / "policies" / "lfu.py", "x = 1\n")
    assert system_digest(system) not in (before, None)


def test_system_without_a_module_of_its_own_or_whose_module_cannot_be_found_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "digested_broken" / "__init__.py", "raise SystemError")
    assert system_digest("freq_cache[policy=lfu]") is None
    assert system_digest("no_such_module_anywhere:Mine") is None
    assert system_digest("digested_broken.cache:Mine") is None


def test_module_that_cannot_be_imported_here_has_a_digest_all_the_same(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "digested_needy.py", "import no_such_package_anywhere\n")
    assert system_digest("digested_needy:Mine") is not None
