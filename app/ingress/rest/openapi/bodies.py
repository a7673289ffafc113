"""JSON bodies of management requests, read by Triton's rules, and schemas of answers that are structs."""

import asyncio
from typing import Any, Final, get_type_hints

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, create_model

from app.core.errors import invalid_arg
from app.protocol.http import strict_json

_JSON: Final = "application/json"
_HEAVY: Final = 32 << 10
"""Bytes of JSON from which a thread parses it."""
_MAX_VALUES: Final = 1 << 18
"""Of a document, including the commas in the text of a configuration."""


class JsonBodies:
    """Reads the bodies of requests, up to a size in bytes."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size

    async def optional(self, request: Request, deep: bool = False) -> Any:
        """Return the request's JSON, an empty object without a body; `deep`: nested to any depth."""
        body = await _body(request)
        return await self._parsed(body, deep) if body else {}

    async def required(self, request: Request) -> Any:
        """Return the request's JSON; an empty body is not JSON."""
        return await self._parsed(await _body(request))

    async def _parsed(self, body: bytes, deep: bool = False) -> Any:
        if len(body) > self._max_size:
            raise invalid_arg(
                f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
                f"{self._max_size} bytes. Use --http-max-input-size to increase the limit."
            )
        return await asyncio.to_thread(_parse, body, deep) if len(body) > _HEAVY else _parse(body, deep)


def _parse(body: bytes, deep: bool) -> Any:
    strict_json.check_count(body, b",[{", _MAX_VALUES)
    document = strict_json.parse_first(body)
    if not deep:
        strict_json.check_depth(document)
    return document


async def _body(request: Request) -> bytes:
    # Not `request.body()`, which would keep the body for the minutes that a load may take.
    return b"".join([piece async for piece in request.stream()])


def json_response(body: bytes = b"") -> Response:
    """Return a response of encoded JSON; empty where Triton's is."""
    return Response(body, media_type=_JSON)


def model_of(struct: type[msgspec.Struct], name: str, **other: Any) -> type[BaseModel]:
    """Return a model with the fields of a struct; `other` are types of more fields, or of these."""
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in (get_type_hints(struct) | other).items()}
    return create_model(name, __doc__=struct.__doc__, **fields)
