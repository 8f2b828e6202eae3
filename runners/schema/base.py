"""What every configuration model builds on: strict values, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def refuse(message: str, *keys: str) -> PydanticCustomError:
    """The error that a validator raises with a sentence for the user.

    `keys` are the dotted keys that do not fit together, seen from the model that refuses: they say where to look.
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "keys": keys})


def _whole(value: Any) -> Any:
    """A whole number may be written 1e3; true and "12" are no numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Real = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[Whole, Field(ge=1)]
NonNegative = Annotated[Whole, Field(ge=0)]


class Strict(BaseModel):
    """Base of all configuration models."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
