"""The shared memory API over HTTP: `/v2/systemsharedmemory` and `/v2/cudasharedmemory`."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.core.errors import invalid_arg
from app.ingress.client_memory.region_files import Region
from app.ingress.service.interface import InferenceService
from app.protocol.http.strict_json import as_text, as_uint

_JSON: Final = "application/json"
_REGION: Final = ("", "/region/{region:segment}")

Document = Callable[[Request], Awaitable[Any]]
Route = tuple[str, str, Callable[[Request], Awaitable[Response]]]


def shared_memory_routes(service: InferenceService, document: Document) -> list[Route]:
    """Method, path and endpoint of each route; `document` reads a request's JSON."""
    routes: list[Route] = []
    for path, cuda in (("/v2/systemsharedmemory", False), ("/v2/cudasharedmemory", True)):
        api = _SharedMemoryApi(service, document, cuda)
        for region in _REGION:
            routes += [
                ("GET", f"{path}{region}/status", api.status),
                ("POST", f"{path}{region}/register", api.register),
                ("POST", f"{path}{region}/unregister", api.unregister),
            ]
    return routes


class _SharedMemoryApi:
    """The endpoints of one kind of memory."""

    def __init__(self, service: InferenceService, document: Document, cuda: bool) -> None:
        self._service = service
        self._document = document
        self._cuda = cuda

    async def status(self, request: Request) -> Response:
        regions = self._service.shared_memory.status(_name(request), self._cuda)
        described = [_described(region) for region in regions]
        return Response(msgspec.json.encode(described), media_type=_JSON)

    async def register(self, request: Request) -> Response:
        name, memory = _name(request), self._service.shared_memory
        memory.check_name(name, self._cuda)
        document = await self._document(request)
        if self._cuda:
            handle = _handle(_field(document, "raw_handle"))
            size = as_uint(_field(document, "byte_size"))
            memory.register_cuda(name, handle, as_uint(_field(document, "device_id")), size)
        else:
            key = as_text(_field(document, "key"))
            offset = as_uint(document.get("offset", 0))
            memory.register_system(name, key, offset, as_uint(_field(document, "byte_size")))
        return Response(media_type=_JSON)

    async def unregister(self, request: Request) -> Response:
        self._service.shared_memory.unregister(_name(request), self._cuda)
        return Response(media_type=_JSON)


def _name(request: Request) -> str:
    return str(request.path_params.get("region", ""))


def _field(document: Any, key: str) -> Any:
    if not isinstance(document, dict) or key not in document:
        raise invalid_arg(f"Shared memory register request has no '{key}' field")
    return document[key]


def _handle(value: Any) -> bytes:
    try:
        return base64.b64decode(as_text(_field(value, "b64")), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_arg("failed to decode the base64 content of 'raw_handle'") from None


def _described(region: Region) -> dict[str, Any]:
    if region.cuda:
        return {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.byte_size,
    }
