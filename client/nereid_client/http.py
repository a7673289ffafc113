"""The v2 protocol over HTTP/1.1, with tensors in binary."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
import numpy as np

from nereid_client.datatypes import Array, decode, to_array
from nereid_client.errors import DeadlineExceeded, ServerError, Unavailable, Unreachable, http_error
from nereid_client.messages import Input, Output, Request, Response, Slice
from nereid_client.retry import FIRST_CONTACT, Contact
from nereid_client.transport import Tls

_JSON_SIZE: Final = "Inference-Header-Content-Length"
_PIECE: Final = 1 << 18
"""Bytes that are written at once: the event loop copies what the socket does not take."""
_JOINED: Final = 1 << 16
"""Bodies up to so many bytes are sent as one."""
_MAX_EVENT: Final = 1 << 26
"""Bytes of one event of a stream."""


class Encoded(NamedTuple):
    """A request as it is sent; the parts of its body are not joined."""

    path: str
    headers: Mapping[str, str]
    body: Sequence[bytes | memoryview]
    size: int


class HttpTransport:
    """Connections to an HTTP endpoint, kept open between calls.

    Args:
        url: e.g. "http://localhost:8000".
        headers: sent with each request.
        tls: for https.
    """

    def __init__(self, url: str, headers: Mapping[str, str], tls: Tls) -> None:
        self._url = url.rstrip("/")
        self.contact = Contact(url)
        ssl = tls.context() if url.startswith("https:") else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl),
            headers=dict(headers),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=True,
            read_bufsize=1 << 20,
        )
        self.closing = self._session.close

    async def close(self) -> None:
        await self.closing()

    async def live(self, timeout: float) -> bool:
        return (await self._call("GET", "/v2/health/live", timeout))[0] == 200

    async def ready(self, model: str, version: str, timeout: float) -> bool:
        path = f"{_model_path(model, version)}/ready" if model else "/v2/health/ready"
        return (await self._call("GET", path, timeout))[0] == 200

    async def describe(self, timeout: float) -> Mapping[str, Any]:
        return await self._json("GET", "/v2", timeout)

    async def describe_model(
        self, model: str, version: str, timeout: float
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        path = _model_path(model, version)
        return await self._json("GET", path, timeout), await self._json("GET", f"{path}/config", timeout)

    def encoded(self, request: Request) -> Any:
        return encode_request(request)

    async def infer(self, encoded: Any, timeout: float) -> Response:
        _, headers, data = await self._checked(
            "POST", encoded.path, timeout, data=_body(encoded), headers=encoded.headers
        )
        return read_response(data, int(headers.get(_JSON_SIZE, len(data))))

    async def stream(self, request: Request, timeout: float) -> AsyncIterator[Response]:
        """Yield the responses; the extension for it knows no binary data, so tensors go as JSON."""
        sent = encode_stream(request)
        limit = _limit(timeout)
        url = self._url + sent.path
        async with (
            _errors(),
            self._session.post(url, data=_body(sent), headers=sent.headers, timeout=limit) as answer,
        ):
            self.contact.made = True
            if answer.status != 200:
                raise _answered(answer.status, answer.headers, await answer.read())
            async for event in _events(answer.content):
                yield read_event(event)

    async def register(self, region: str, key: str, size: int, timeout: float) -> None:
        path = f"/v2/systemsharedmemory/region/{quote(region, '')}/register"
        await self._json("POST", path, timeout, json={"key": key, "offset": 0, "byte_size": size})

    async def unregister(self, region: str, timeout: float) -> None:
        await self._json("POST", f"/v2/systemsharedmemory/region/{quote(region, '')}/unregister", timeout)

    async def register_cuda(self, region: str, handle: bytes, device: int, size: int, timeout: float) -> None:
        path = f"/v2/cudasharedmemory/region/{quote(region, '')}/register"
        raw = {"b64": b64encode(handle).decode()}
        body = {"raw_handle": raw, "device_id": device, "byte_size": size}
        await self._json("POST", path, timeout, json=body)

    async def unregister_cuda(self, region: str, timeout: float) -> None:
        await self._json("POST", f"/v2/cudasharedmemory/region/{quote(region, '')}/unregister", timeout)

    async def statistics(self, model: str, version: str, timeout: float) -> Sequence[Mapping[str, Any]]:
        path = f"{_model_path(model, version)}/stats"
        found: Sequence[Mapping[str, Any]] = (await self._json("GET", path, timeout))["model_stats"]
        return found

    async def index(self, timeout: float) -> Sequence[Mapping[str, Any]]:
        found: Any = await self._json("POST", "/v2/repository/index", timeout)
        return list(found)

    async def load(self, model: str, config: str, files: Mapping[str, bytes], timeout: float) -> None:
        parameters: dict[str, Any] = {"config": config} if config else {}
        parameters.update({f"file:{path}": b64encode(data).decode() for path, data in files.items()})
        path = f"/v2/repository/models/{quote(model, '')}/load"
        await self._json("POST", path, timeout, json={"parameters": parameters} if parameters else {})

    async def unload(self, model: str, timeout: float) -> None:
        await self._json("POST", f"/v2/repository/models/{quote(model, '')}/unload", timeout)

    async def feedback(
        self, model: str, version: str, records: Sequence[Mapping[str, Any]], timeout: float
    ) -> int:
        path = f"{_model_path(model, version)}/feedback"
        return int((await self._json("POST", path, timeout, json={"feedback": records}))["accepted"])

    async def feedback_figures(self, model: str, timeout: float) -> Mapping[str, Any]:
        return await self._json("GET", f"{_model_path(model, '')}/feedback", timeout)

    async def _json(self, method: str, path: str, timeout: float, **body: Any) -> Mapping[str, Any]:
        _, _, data = await self._checked(method, path, timeout, **body)
        found: Mapping[str, Any] = json.loads(data) if data else {}
        return found

    async def _checked(
        self, method: str, path: str, timeout: float, **body: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        answer = await self._call(method, path, timeout, **body)
        if answer[0] >= 400:
            raise _answered(*answer)
        return answer

    async def _call(
        self, method: str, path: str, timeout: float, **body: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        limit = _limit(timeout)
        async with (
            _errors(),
            self._session.request(method, self._url + path, timeout=limit, **body) as answer,
        ):
            self.contact.made = True
            return answer.status, answer.headers, await answer.read()


def _limit(timeout: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(timeout, sock_connect=min(timeout, FIRST_CONTACT))


class _errors:
    """Turns failures of the connection into the client's own."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            raise Unreachable("UNAVAILABLE", str(error)) from None
        if isinstance(error, TimeoutError):
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "there was no answer in time") from None
        if isinstance(error, aiohttp.ClientError | OSError):
            raise _failure(error) from error


def _failure(error: Exception) -> ServerError:
    """Return the exception for a connection that failed: `Unavailable` if it may be better the next time."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return ServerError(
            "UNAVAILABLE", f"the certificate of {error.host}:{error.port} is refused: {reason}"
        )
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return ServerError("UNAVAILABLE", f"{error.host}:{error.port} does not answer by TLS: is it http://?")
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        reason = cause.strerror or str(cause)
        if cause.errno and not isinstance(cause, socket.gaierror):  # whose numbers are others
            reason = os.strerror(cause.errno)
        return Unreachable("UNAVAILABLE", f"cannot connect to {error.host}:{error.port}: {reason}")
    if isinstance(error, aiohttp.ClientResponseError):
        where = f"{error.request_info.url.host}:{error.request_info.url.port}"
        return ServerError("UNAVAILABLE", f"{where} does not answer by HTTP/1.1: is it a port of gRPC?")
    return Unavailable("UNAVAILABLE", str(error) or type(error).__name__)


def encode_request(request: Request) -> Encoded:
    """Return what is sent of an inference."""
    head = json.dumps(_header(request)).encode()
    data = [entry.data for entry in request.inputs if not isinstance(entry.data, Slice)]
    size = len(head) + sum(map(len, data))
    headers = {_JSON_SIZE: str(len(head)), "Content-Length": str(size)}
    headers["Content-Type"] = "application/octet-stream"
    path = _model_path(request.model, request.version) + "/infer"
    return Encoded(path, headers, [head, *data], size)


def encode_stream(request: Request) -> Encoded:
    """Return what is sent of a request with any number of responses."""
    values: dict[str, Any] = {"id": request.id} if request.id else {}
    values.update(request.parameters)
    values.update((entry.name, _as_json(entry)) for entry in request.inputs)
    body = json.dumps(values).encode()
    headers = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    path = _model_path(request.model, request.version) + "/generate_stream"
    return Encoded(path, headers, [body], len(body))


def _model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, '')}" + (f"/versions/{quote(version, '')}" if version else "")


def _header(request: Request) -> dict[str, Any]:
    """Return the JSON part of a request."""
    header: dict[str, Any] = {"inputs": [_input_header(entry) for entry in request.inputs]}
    parameters = dict(request.parameters)
    if request.outputs:
        header["outputs"] = [_output_header(output) for output in request.outputs]
    else:
        parameters["binary_data_output"] = True
    if request.id:
        header["id"] = request.id
    if parameters:
        header["parameters"] = parameters
    return header


def _place(place: Slice) -> dict[str, Any]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.size,
    }


def _input_header(entry: Input) -> dict[str, Any]:
    source = _place(entry.data) if isinstance(entry.data, Slice) else {"binary_data_size": len(entry.data)}
    return {"name": entry.name, "datatype": entry.datatype, "shape": entry.shape, "parameters": source}


def _output_header(output: Output) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data": True} if output.place is None else _place(output.place)
    if output.classes:
        parameters["classification"] = output.classes
    return {"name": output.name, "parameters": parameters}


def _body(encoded: Encoded) -> Any:
    """Return what sends the body: in pieces, if it is long."""
    return b"".join(encoded.body) if encoded.size <= _JOINED else _pieces(encoded.body)


async def _pieces(parts: Sequence[bytes | memoryview]) -> AsyncIterator[memoryview]:
    for data in parts:
        part = memoryview(data)
        for start in range(0, len(part), _PIECE):
            yield part[start : start + _PIECE]


def _answered(status: int, headers: Mapping[str, str], data: bytes) -> Exception:
    """Return the exception for an answer that is an error."""
    try:
        text = str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        text = data[:500].decode(errors="replace") or f"HTTP status {status}"
    try:
        retry_after = float(headers.get("Retry-After", 0))
    except ValueError:  # a date
        retry_after = 1.0
    return http_error(status, text, retry_after)


def read_response(data: bytes, json_size: int) -> Response:
    """Return a response by its body, which begins with so many bytes of JSON.

    Raises:
        ValueError: it is none.
    """
    head = json.loads(memoryview(data)[:json_size].tobytes())
    arrays: dict[str, Array] = {}
    placed: dict[str, tuple[str, tuple[int, ...]]] = {}
    position = json_size
    for output in head.get("outputs", ()):
        name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
        parameters = output.get("parameters") or {}
        if "binary_data_size" in parameters:
            end = position + parameters["binary_data_size"]
            arrays[name] = decode(memoryview(data)[position:end], datatype, shape)
            position = end
        elif "data" in output:
            arrays[name] = to_array(name, output["data"], datatype).reshape(shape)
        else:
            placed[name] = datatype, shape
    return Response(
        head.get("model_name", ""),
        head.get("model_version", ""),
        head.get("id", ""),
        arrays,
        placed,
        head.get("parameters") or {},
    )


def _as_json(entry: Input) -> Any:
    """Return a tensor as the extension wants it: one element by itself, more as a list."""
    if isinstance(entry.data, Slice):
        raise TypeError("a stream over HTTP cannot take inputs from shared memory")
    array = decode(entry.data, entry.datatype, entry.shape)
    elements = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    return elements[0] if len(elements) == 1 else elements


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events."""
    waiting = b""
    async for piece in content.iter_any():
        *events, waiting = (waiting + piece).split(b"\n\n")
        if len(waiting) > _MAX_EVENT:
            raise Unavailable("INTERNAL", f"an event of the stream is longer than {_MAX_EVENT} bytes")
        for event in events:
            if event.startswith(b"data: "):
                yield event[6:]


def read_event(event: bytes) -> Response:
    """Return a response by the data of a server-sent event; its outputs have no datatype yet.

    Raises:
        ValueError: it is none.
        ServerError: it is an error.
    """
    fields = json.loads(event)
    if "error" in fields:
        raise http_error(500, str(fields["error"]))
    known = {name: str(fields.pop(name, "")) for name in ("model_name", "model_version", "id")}
    arrays = {name: _from_json(value) for name, value in fields.items() if not isinstance(value, dict)}
    return Response(known["model_name"], known["model_version"], known["id"], arrays, {}, {})


def _from_json(value: Any) -> Array:
    """Return an output of a stream; `Signature.typed` gives it the datatype that the metadata has."""
    return np.array(value, object)
