"""The JSON Schema of record files: as the models give it, as published, and where a record does not fit it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from suite.records.record import SCHEMA_VERSION, Record

_SHOWN = 60


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a record, or worth a warning: the place, as in `turns.system_s[1][3]`, and what is.

    The place is empty for the file itself.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def shown(value: object) -> str:
    """A value in a few words, on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


FILE: Final = Path(__file__).resolve().parents[1] / "records" / "schema" / f"record-{SCHEMA_VERSION}.json"
"""The published schema."""


class _RecordSchema(GenerateJsonSchema):
    """Pydantic's schema, less titles that repeat field names, with floats as records have them."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """JSON has no NaN: a loss that diverged, and infinities, are strings."""
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def schema_text() -> str:
    """JSON Schema, draft 2020-12, of what the suite writes, as it is published: every field is there."""
    made = Record.model_json_schema(mode="serialization", schema_generator=_RecordSchema)
    head = {
        "$schema": _RecordSchema.schema_dialect,
        "title": f"Record, schema version {SCHEMA_VERSION}",
        "description": "One run of one cell of the embedding offload benchmark; units end the names of fields.",
    }
    return json.dumps(head | {name: value for name, value in made.items() if name not in head}, indent=2) + "\n"


@cache
def validator() -> Draft202012Validator:
    """Of the published schema."""
    return Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))


def misfits(content: dict[str, Any]) -> list[Finding]:
    """Every place at which a record's content breaks the published schema, in the words of `jsonschema`."""
    return [
        Finding(inner.json_path.removeprefix("$").removeprefix("."), _message(inner))
        for error in validator().iter_errors(content)
        for inner in _innermost(error)
    ]


def _innermost(error: ValidationError) -> Iterator[ValidationError]:
    """Of a field that may be null, what is wrong with what is there: that it is not null says nothing."""
    fitting = [inner for inner in error.context or () if inner.path or inner.validator not in ("type", "enum")]
    if not fitting:
        yield error
    for inner in fitting:
        yield from _innermost(inner)


def _message(error: ValidationError) -> str:
    """What the library says; of a choice, why none of its branches fits."""
    if error.context:
        return " and ".join(map(_message, error.context))
    return error.message.replace(repr(error.instance), shown(error.instance), 1)
