"""The bytes of every request, made before the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from nereid_client import Signature
from nereid_client.datatypes import encode
from nereid_client.http import encode_request, encode_stream
from nereid_client.messages import Input, Request
from nereid_client.pool import AsyncPool, Lease, through
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import Endpoint
from nereid_client.tools.perf.inputs import Step
from nereid_client.tools.perf.options import Options, PerfError

MAX_BYTES: Final = 2 << 30
"""Of all payloads together."""
_SERVICE: Final = "/inference.GRPCInferenceService/"


def endpoint_of(options: Options) -> Endpoint:
    """Return where the requests of a run go."""
    address = options.address
    if address.protocol == "grpc":
        path = _SERVICE + ("ModelStreamInfer" if options.streaming else "ModelInfer")
    else:
        version = f"/versions/{quote(options.version, '')}" if options.version else ""
        verb = "generate_stream" if options.streaming else "infer"
        path = f"/v2/models/{quote(options.model, '')}{version}/{verb}"
    headers = tuple(options.headers.items())
    return Endpoint(
        address.protocol, address.host, address.port, path, headers, address.tls, options.streaming
    )


def requests_of(options: Options, signature: Signature, steps: Sequence[Step]) -> list[Request]:
    return [
        Request(
            options.model,
            options.version,
            tuple(
                Input(name, datatype, array.shape, encode(array, datatype))
                for name, array in step.items()
                for datatype in [signature.inputs[name].datatype]
            ),
        )
        for step in steps
    ]


def payload(endpoint: Endpoint, request: Request) -> bytes:
    """Return what is sent of a request."""
    if endpoint.protocol == "grpc":
        from nereid_client.grpc import encode_request as message

        return grpc_payload(message(request))
    sent = encode_stream(request) if endpoint.streaming else encode_request(request)
    return http_request(endpoint, dict(sent.headers), b"".join(sent.body))


def payloads_of(endpoint: Endpoint, requests: Sequence[Request]) -> tuple[bytes, ...]:
    """Return what is sent of each request.

    Raises:
        PerfError: that is too much memory.
    """
    return _bounded(payload(endpoint, request) for request in requests)


def sequences_of(
    endpoint: Endpoint, data: Sequence[Sequence[Request]], number: int, length: int, first_id: int
) -> tuple[tuple[bytes, ...], ...]:
    """Return the steps of `number` sequences, whose numbers begin with `first_id`.

    A sequence of one step is repeated `length` times; others are as long as they are.

    Raises:
        PerfError: that is too much memory.
    """
    left, found = MAX_BYTES, []
    for slot in range(number):
        steps = data[slot % len(data)]
        steps = list(steps) * length if len(steps) == 1 else steps
        made = tuple(
            payload(endpoint, _with(step, first_id + slot, place == 0, place == len(steps) - 1))
            for place, step in enumerate(steps)
        )
        left -= sum(map(len, made))
        if left < 0:
            raise PerfError("the requests take too much memory: give smaller data or fewer sequences")
        found.append(made)
    return tuple(found)


def _with(request: Request, number: int, start: bool, end: bool) -> Request:
    parameters = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
    return Request(request.model, request.version, request.inputs, request.outputs, request.id, parameters)


def _bounded(made: Any) -> tuple[bytes, ...]:
    left, found = MAX_BYTES, []
    for each in made:
        left -= len(each)
        if left < 0:
            raise PerfError("the requests take too much memory: give smaller data, or fewer of them")
        found.append(each)
    return tuple(found)


def slot_bytes(requests: Sequence[Request], outputs: int) -> int:
    """Return the shared memory that the largest request takes, with so many bytes for its outputs."""
    most = max(sum(_size(entry) for entry in request.inputs) for request in requests)
    return max(most + outputs, 64)


def _size(entry: Input) -> int:
    return len(entry.data) + 64 if isinstance(entry.data, memoryview) else 0


def placed(
    requests: Sequence[Request], pool: AsyncPool, signature: Signature, leases: list[Lease]
) -> list[Request]:
    """Return the requests with their tensors in slots of the pool; `leases` keeps these."""
    found = []
    for request in requests:
        lease = pool.lease()
        if lease is None:
            raise PerfError("there is not enough shared memory")
        leases.append(lease)
        found.append(through(lease, pool, request, signature))
    return found
