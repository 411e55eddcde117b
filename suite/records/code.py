"""Digests of code: a cell counts as measured only as long as the code that it was measured with is the same."""

import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""Folder of the packages below, as this process imported them."""
SOURCE_PACKAGES = ("suite", "systems", "workloads")
_PRESENTING = (
    "suite/advise", "suite/compare", "suite/doctor", "suite/report", "suite/run/console", "suite/tables",
    "suite/validate",
)  # fmt: skip
"""Folders whose code shows records, inspects a machine or reads options. What it decides is in the cell itself."""


def code_digest(project: Path) -> str:
    """Digest of the `.py` and `.json` files of the source packages that can change a measurement.

    Folders that only present records are left out: a new table does not make a measured cell undone.
    """
    files = [
        path
        for package in SOURCE_PACKAGES
        for path in _sources(project / package, (".py", ".json"))
        if not any(path.is_relative_to(project / folder) for folder in _PRESENTING)
    ]
    return _digest(files, project)


def system_digest(system: str) -> str | None:
    """Digest of the code of a system of one's own.

    That is the file of its module. Where the module is a package, or lies in one, it is every `.py` file of that
    package, because the module's neighbours are what it is most likely to import. None for a registered system, whose
    code `code_digest` covers, and for a module that cannot be found.
    """
    module, colon, _ = system.partition("[")[0].partition(":")
    if not colon:
        return None
    package, file = _found(module)
    if package is not None:
        return _digest(_sources(package, (".py",)), package)
    return None if file is None else _digest([file], file.parent)


def _found(module: str) -> tuple[Path | None, Path | None]:
    """The folder of the package that a module is or lies in, and the module's file; None: there is none."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.has_location or spec.origin is None:
            return None, None
        file = Path(spec.origin)
        above = importlib.util.find_spec(spec.parent) if spec.parent else None
    except Exception:  # a package of one's own runs as it is searched, and can raise anything
        return None, None
    # a folder without an __init__.py is no package: what lies in it need not belong together
    return (Path(above.origin).parent if above is not None and above.origin is not None else None), file


def _sources(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file()]


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        content = path.read_bytes()
        # The length keeps a file's end from being mistaken for the next one's beginning.
        digest.update(f"{path.relative_to(root).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
