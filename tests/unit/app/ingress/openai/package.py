"""What tests ask of objects of the `openai` package."""

from typing import Any

from pydantic import BaseModel


def unknown_fields(value: Any) -> list[str]:
    """Return the fields, at any depth, that the package does not know."""
    if isinstance(value, list):
        return [name for each in value for name in unknown_fields(each)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for each in value.__dict__.values() for name in unknown_fields(each)]
    return [*(value.model_extra or {}), *inner]
