"""Where a record's content does not fit its schema, in words for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from jsonschema import ValidationError

from suite.validate.finding import Finding, json_path, shown
from suite.validate.schema import Schema, validator

_KINDS = {"object": "an object", "array": "an array"}


def misfits(content: dict[str, Any]) -> list[Finding]:
    """Every place at which the content breaks the published schema."""
    checker = validator()
    findings = [
        finding
        for error in checker.iter_errors(content)
        for innermost in _innermost(error)
        for finding in _said(innermost, cast("Schema", checker.schema))
    ]
    return list(dict.fromkeys(findings))  # the library reports every missing field once per field


def _innermost(error: ValidationError) -> Iterator[ValidationError]:
    """Of a field that may be null, what is wrong with what is there: that it is not null says nothing."""
    fitting = [inner for inner in error.context or () if inner.path or inner.validator not in ("type", "enum")]
    if not fitting:
        yield error
    for inner in fitting:
        yield from _innermost(inner)


def _said(error: ValidationError, root: Schema) -> Iterator[Finding]:
    place = list(error.absolute_path)
    found: Any = error.instance
    wanted: Any = error.validator_value
    schema = cast("Schema", error.schema)
    match error.validator:
        case "required":
            for name in wanted:
                if name not in found:
                    yield Finding(json_path([*place, name]), "is missing")
        case "additionalProperties":
            for name in found:
                if name not in schema["properties"]:
                    yield Finding(json_path([*place, name]), "is no field of a record")
        case "minItems" | "maxItems":
            yield Finding(json_path(place), f"found {len(found)} entries, expected {wanted}")
        case _:
            yield Finding(json_path(place), f"found {shown(found)}, expected {_expected(schema, root)}")


def _expected(schema: Schema, root: Schema) -> str:
    """What a schema allows: `number, "NaN", "Infinity", "-Infinity" or null`."""
    words = list(_words(schema, root))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _words(schema: Schema, root: Schema) -> Iterator[str]:
    if "anyOf" in schema:
        for choice in schema["anyOf"]:
            yield from _words(choice, root)
    elif "$ref" in schema:
        yield from _words(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    elif "enum" in schema:
        yield from map(shown, schema["enum"])
    elif "const" in schema:
        yield shown(schema["const"])
    else:
        yield _KINDS.get(schema["type"]) or str(schema["type"])
