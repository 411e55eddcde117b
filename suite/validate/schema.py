"""The JSON Schema of record files: as the models give it, and as published."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from suite.records.record import SCHEMA_VERSION, Record

Schema = dict[str, Any]

FILE: Final = Path(__file__).resolve().parents[1] / "records" / "schema" / f"record-{SCHEMA_VERSION}.json"
"""The published schema."""


class _RecordSchema(GenerateJsonSchema):
    """Pydantic's schema, less titles that repeat field names, with floats as records have them."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """JSON has no NaN: a loss that diverged, and infinities, are strings."""
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def current_schema() -> Schema:
    """JSON Schema, draft 2020-12, of what the suite writes: every field is there."""
    made = Record.model_json_schema(mode="serialization", schema_generator=_RecordSchema)
    head = {
        "$schema": _RecordSchema.schema_dialect,
        "title": f"Record, schema version {SCHEMA_VERSION}",
        "description": "One run of one cell of the embedding offload benchmark; units end the names of fields.",
    }
    return {**head, **{name: value for name, value in made.items() if name not in head}}


def schema_text() -> str:
    """`current_schema` as it is published."""
    return json.dumps(current_schema(), indent=2) + "\n"


@cache
def validator() -> Draft202012Validator:
    """Of the published schema."""
    return Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))
