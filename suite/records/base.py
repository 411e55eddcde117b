"""What all parts of a record have in common, and how rules between them are told."""

from collections.abc import Iterable
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

AtLeastOne = Annotated[int, Field(ge=1)]
"""Steps, sizes and the like: others are divided by them."""
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Place = tuple[str | int, ...]
"""Fields and indices that lead to a value."""
EVERY_FIELD: Final = {"every_field": True}
"""Validation context in which fields with a default have to be there too: the suite writes every field."""


class Model(BaseModel):
    """A part of a record: never changed once it is made, and without fields that nobody declared."""

    # a loss can diverge: NaN must survive JSON
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,  # the printed schema explains its fields
        json_schema_serialization_defaults_required=True,  # what is written has every field
    )

    @model_validator(mode="after")
    def _has_every_field(self, info: ValidationInfo) -> Self:
        if info.context == EVERY_FIELD:
            missing = (name for name in type(self).model_fields if name not in self.model_fields_set)
            refuse(type(self).__name__, (((name,), "Field required") for name in missing))
        return self


def refuse(model: str, broken: Iterable[tuple[Place, str]]) -> None:
    """Raise a `ValidationError` that says which rules are broken, and where; return if there is none."""
    errors = [
        InitErrorDetails(type=PydanticCustomError("rule", "{what}", {"what": what}), loc=place, input=None)
        for place, what in broken
    ]
    if errors:
        raise ValidationError.from_exception_data(model, errors)
