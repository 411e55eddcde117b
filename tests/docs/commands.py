"""The commands that the pages show: found in their text, and carried out as a reader would."""

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType

import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:python|\.venv/bin/\w+|make|pytest|pip|git|dask|curl|gh) [^|]+")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
_BY_MAKE = ("ARGS", "BUILD", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "TORCH", "VENV")
"""Environment variables by which a `make` that runs these tests would change what a page's `make` prints."""


def commands() -> dict[str, list[str]]:
    """Every command, as it is written but for comments and the interpreter's folder; the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for command in [*in_blocks(page.read_text(encoding="utf-8")), *in_sentences(page.read_text(encoding="utf-8"))]:
            found.setdefault(command, []).append(page.name)
    return found


def in_blocks(text: str) -> Iterator[str]:
    """Lines of blocks for a shell."""
    for language, body in _FENCE.findall(text):
        if language == "sh":
            for line in textwrap.dedent(body).replace("\\\n", " ").splitlines():
                if command := normal(re.sub(r"(?:^|\s)#.*", "", line)):
                    yield command


def in_sentences(text: str) -> Iterator[str]:
    """Inline code that is a whole command."""
    for code in re.findall(r"`([^`]+)`", _FENCE.sub("", text)):
        if COMMAND.fullmatch(normal(code)):
            yield normal(code)


def normal(command: str) -> str:
    """One blank between words, and `python` for the environment's."""
    return " ".join(command.split()).replace(".venv/bin/python", "python")


@dataclass(frozen=True)
class Run:
    """A command that is run, with what shrinks or redirects it in plain sight.

    Attributes:
        add: Options put at its end.
        swap: Parts replaced before it is run.
        after: Commands that make what it reads.
        leaves: Files that it must write.
        says: What its output must contain.
        codes: Exit codes that are right.
    """

    add: str = ""
    swap: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    says: str = ""
    codes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Elsewhere:
    """Run by another test, which names the program, or by one in a folder."""

    test: str
    program: str


Rule = Run | Elsewhere | str
"""A string says what a command needs that tests do not have."""


class Checkout:
    """A copy of the repository to run commands in: sources are linked, what commands write is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[str, str] = {}
        for name in ("suite", "systems", "workloads", "tests", "requirements", "Makefile", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "run_bench.py", folder)
        shutil.copytree(ROOT / "docs", folder / "docs")
        shutil.copytree(ROOT / "results", folder / "results", ignore=_runs_of_this_machine)
        (folder / ".venv").mkdir()
        for build, triple in product(("cpu", "cuda"), ROOT.glob("requirements/torch-*.txt")):
            torch = triple.stem.removeprefix("torch-")
            (folder / ".venv" / f".ready-{build}-{torch}").touch()  # so that make has nothing to install
        (folder / ".venv" / ".ready-tools").touch()

    def carry_out(self, command: str, rules: dict[str, Rule]) -> str:
        """Run a command once, those that it comes after first; its output.

        Raises:
            AssertionError: it ended otherwise than its rule says.
        """
        if command not in self._done:
            rule = rules[command]
            assert isinstance(rule, Run), f"{command} is not run here, so nothing can come after it"
            for earlier in rule.after:
                self.carry_out(earlier, rules)
            line = command
            for part, replacement in rule.swap.items():
                assert part in line, f"{command!r} has no {part!r} to replace: mend its rule"
                line = line.replace(part, replacement)
            line = f"{self.printed(line)[-1] if line.startswith('make ') else line} {rule.add}"
            for path in rule.leaves:
                (self.folder / path).unlink(missing_ok=True)
            words = self.words(line)
            assert words[0] == "python", f"{words[0]} is not Python's: give the command a rule of another kind"
            code, output = run_python(words[1:], self.folder)
            assert code in rule.codes, f"{line}\nended with {code}:\n{output}"
            said = " ".join(output.split())  # however the terminal breaks its lines
            assert " ".join(rule.says.split()) in said, f"{line}\ndid not say {rule.says!r}:\n{output}"
            assert [path for path in rule.leaves if not (self.folder / path).is_file()] == [], f"{line}\n{output}"
            self._done[command] = output
        return self._done[command]

    def printed(self, command: str) -> list[str]:
        """Commands that a `make` would run."""
        environment = {name: value for name, value in os.environ.items() if name not in _BY_MAKE}
        done = subprocess.run(
            ["bash", "-c", f"{command} --dry-run"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [normal(line) for line in done.stdout.replace("\\\n", " ").splitlines()]

    def words(self, line: str) -> list[str]:
        """The words of a command after expansion, as bash sees them in the folder."""
        plain = re.sub(r"'[^']*'|\"[^\"]*\"|\$\([^)]*\)", "", line)
        assert not set("<>|;&") & set(plain), f"{line}\nis not one command: no pipe, no redirection"
        done = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {line}"], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.split("\0")[:-1]


def run_python(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a script, or of `-m` and a module, run in a folder and in this process.

    It has imported already what takes each command seconds.
    """
    output = io.StringIO()
    before, path = sys.argv, sys.path
    _leave_group()  # which a test before this one may have joined
    with contextlib.chdir(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if words[0] == "-m":
                sys.argv, sys.path = words[1:], [str(folder), *path]
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv, sys.path = words, [str((folder / words[0]).parent), *path]
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            return (end.code if isinstance(end.code, int) else int(end.code is not None)), output.getvalue()
        finally:
            sys.argv, sys.path = before, path
            _leave_group()
    return 0, output.getvalue()


def module_of(path: Path) -> ModuleType:
    """Import a program that lies in no package."""
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(made)
    return made


def _leave_group() -> None:
    """End torchrec's group, which a process of its own would take with it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _runs_of_this_machine(at: str, names: list[str]) -> set[str]:
    """What of `results` is no part of the repository."""
    return {"records", "tables", "logs"} & set(names) if Path(at) == ROOT / "results" else set()
