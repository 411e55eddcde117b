"""What all parts of a record have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

AtLeastOne = Annotated[int, Field(ge=1)]
"""Steps, sizes and the like: others are divided by them."""


class Model(BaseModel):
    """A part of a record: never changed once it is made, and without fields that nobody declared."""

    # a loss can diverge: NaN must survive JSON
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,  # the published schema explains its fields
        json_schema_serialization_defaults_required=True,  # what is written has every field
    )
