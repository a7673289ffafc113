"""Schemas of answers that are structs of the server, for the OpenAPI document."""

from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel, create_model


def model_of(struct: type[msgspec.Struct], name: str, **other: Any) -> type[BaseModel]:
    """Return a model with the fields of a struct; `other` are types of more fields, or of these."""
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in (get_type_hints(struct) | other).items()}
    return create_model(name, __doc__=struct.__doc__, **fields)
