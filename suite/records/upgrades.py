"""Records of older schema versions, brought to the current one.

A change of `Record` is a new version: it gets a number, a function below and a file under `schema/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from suite.records.record import SCHEMA_VERSION

Content = Mapping[str, Any]
"""A record as JSON has it."""


class UnknownVersion(ValueError):
    """No suite wrote such a version, or a newer one did; the message says what to do."""


def upgraded(content: Content) -> Content:
    """A record's content at the current schema version; what is there already is returned as it is.

    Args:
        content: Of any version, with its `schema_version`.

    Raises:
        UnknownVersion: there is no way from its version to the current one.
    """
    while (version := version_of(content)) != SCHEMA_VERSION:
        content = UPGRADES[version](content)
    return content


def version_of(content: Content) -> int:
    """The schema version of a record's content, 1 to the current one. Raises `UnknownVersion`."""
    version = content["schema_version"]
    if type(version) is int and (version == SCHEMA_VERSION or version in UPGRADES):  # True equals 1
        return version
    if type(version) is int and version > SCHEMA_VERSION:
        raise UnknownVersion(
            f"has schema version {version}, this suite reads 1 to {SCHEMA_VERSION}; update the suite to read it"
        )
    raise UnknownVersion(
        f"has a schema version that no suite wrote, this one reads 1 to {SCHEMA_VERSION}; measure it again"
    )


def _to_2(content: Content) -> Content:
    """From 1: why predictions are missing was not kept, nor what of a step is hidden, so both are empty."""
    prediction = content.get("prediction")
    if isinstance(prediction, dict):
        content = {**content, "prediction": {"hidden_s": {}, **prediction}}
    return {"prediction_missing": "", **content, "schema_version": 2}


UPGRADES: Mapping[int, Callable[[Content], Content]] = {1: _to_2}
"""The step to the next version, by the version that it takes."""
