"""The shared memory API over HTTP: `/v2/systemsharedmemory` and `/v2/cudasharedmemory`."""

import base64
import binascii
from typing import Any, Final

from fastapi import Request, Response

from app.core.encoding import to_json
from app.core.errors import invalid_arg
from app.ingress.client_memory.region_files import Region
from app.ingress.client_memory.registry import HANDLE_BYTES
from app.ingress.rest.openapi import schemas
from app.ingress.rest.openapi.api import Body, RestApi, RestRoute
from app.ingress.rest.openapi.bodies import JsonBodies, json_response
from app.ingress.rest.openapi.schemas import RegionName
from app.ingress.service.interface import InferenceService
from app.protocol.http.strict_json import as_text, as_uint

_REGION: Final = ("", "/region/{region:segment}")
_KINDS: Final[tuple[tuple[str, bool, Body, Body], ...]] = (
    ("/v2/systemsharedmemory", False, schemas.SystemRegions, schemas.RegisterSystemRegion),
    ("/v2/cudasharedmemory", True, schemas.CudaRegions, schemas.RegisterCudaRegion),
)
"""Path, whether it is CUDA memory, and schemas of status and registration."""


def add_shared_memory_routes(api: RestApi, service: InferenceService, bodies: JsonBodies) -> None:
    """Register the routes."""
    for path, cuda, status, registration in _KINDS:
        memory = _SharedMemory(service, bodies, cuda)
        kind = "cuda" if cuda else "system"
        for place in (f"{path}{region}" for region in _REGION):
            api.add(RestRoute("shared-memory", "GET", f"{place}/status", memory.status, response=status))
            api.add(
                RestRoute(
                    "shared-memory",
                    "POST",
                    f"{place}/register",
                    memory.register,
                    request=registration,
                    action=f"register-{kind}-memory",
                    whole=False,
                )
            )
            api.add(
                RestRoute(
                    "shared-memory",
                    "POST",
                    f"{place}/unregister",
                    memory.unregister,
                    action=f"unregister-{kind}-memory",
                    whole=False,  # of the client's regions
                )
            )


class _SharedMemory:
    """The endpoints of one kind of memory."""

    def __init__(self, service: InferenceService, bodies: JsonBodies, cuda: bool) -> None:
        self._service = service
        self._bodies = bodies
        self._cuda = cuda

    async def status(self, region: RegionName = "") -> Response:
        """Registered regions, or one of them."""
        regions = self._service.shared_memory.status(region, self._cuda)
        return json_response(to_json([_described(found) for found in regions]))

    async def register(self, request: Request, region: RegionName = "") -> Response:
        """Register a region, whose name the path must have."""
        memory = self._service.shared_memory
        memory.check_name(region, self._cuda)
        document = await self._bodies.required(request)
        if self._cuda:
            handle = _handle(_field(document, "raw_handle"))
            size = as_uint(_field(document, "byte_size"))
            memory.register_cuda(region, handle, as_uint(_field(document, "device_id")), size)
        else:
            key = as_text(_field(document, "key"))
            offset = as_uint(document.get("offset", 0))
            memory.register_system(region, key, offset, as_uint(_field(document, "byte_size")))
        return json_response()

    async def unregister(self, region: RegionName = "") -> Response:
        """Unregister a region, or all of them without a name."""
        self._service.shared_memory.unregister(region, self._cuda)
        return json_response()


def _field(document: Any, key: str) -> Any:
    if not isinstance(document, dict) or key not in document:
        raise invalid_arg(f"Shared memory register request has no '{key}' field")
    return document[key]


def _handle(value: Any) -> bytes:
    try:
        handle = base64.b64decode(as_text(_field(value, "b64")), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_arg("failed to decode the base64 content of 'raw_handle'") from None
    if len(handle) != HANDLE_BYTES:
        raise invalid_arg("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return handle


def _described(region: Region) -> dict[str, Any]:
    if region.cuda:
        return {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
