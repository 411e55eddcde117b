"""Files that are on the drive as a whole or not at all: a manifest in JSON, with a checksum, and the files it names.

Those are written first. Then the manifest takes the place of the last one, in one step.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

_CHECKSUM = "crc32"


class Damaged(ValueError):
    """Files differ from those that were written; the message names one."""


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Overwrite a file and, once it is on the drive, return the CRC-32 of its content.

    Its name is on the drive only after `sync_directory`.

    Raises:
        OSError: it could not be written.
    """
    crc = 0
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            crc = zlib.crc32(part, crc)
        file.flush()
        os.fsync(file.fileno())
    return crc


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the drive."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def checksum_of(path: Path) -> int:
    """The CRC-32 of a file's content."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return crc


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest to the drive beside `path`, and rename it to that.

    The new one has the name on the drive only after `sync_directory`.

    Raises:
        OSError: it could not be written; the one at `path` is as before.
        TypeError, ValueError: the content is no JSON.
    """
    text = json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1, allow_nan=False)
    beside = path.with_name(f"{path.name}.part")
    try:
        write_synced(beside, [text.encode()])
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_manifest(path: Path, *, version: int, remedy: str) -> dict[str, Any]:
    """Read a manifest back, which has its version under `version`.

    Raises:
        Damaged: it is not what was written; the message ends with the remedy.
        ValueError: it has another version.
        OSError: it cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        found, checksum = content["version"], content.pop(_CHECKSUM, None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # not what is written there
        raise Damaged(f"{path} is damaged ({error}): {remedy}") from error
    if found != version:
        raise ValueError(f"{path} is of version {found}, this code reads {version}: load it with the code that wrote it")
    if checksum != _checksum(content):
        raise Damaged(f"{path} is damaged, its checksum does not match: {remedy}")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
