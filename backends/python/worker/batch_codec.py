"""Batches and what became of them, as messages that come again.

From one ordinary request to the next only numbers differ (its own, by which it is known, its deadline, the
sizes of its tensors), its id and the bytes of its tensors; likewise for responses. These are in buffers. What
remains is encoded once for all that agree in it.
"""

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.core.tensors import Buffer, InferRequest, InferResponse, Tensor
from backends.base import Request
from backends.python.worker.framing import Payload, encoded
from backends.python.worker.link_codec import (
    Fields,
    add_tensors,
    common_request_fields,
    common_response_fields,
    read_request,
    read_response,
)

_MAX_TEXTS: Final = 256
_ABOUT: Final = 3
"""Numbers of a request before the sizes of its inputs: its own, its deadline in us, the bytes of its id."""

_LATEST_S: Final = 9e12
"""A deadline beyond it, of a timeout of 2^64 us say, is not a number of 63 bits in us."""

DETACHED: Final = 1
RESCHEDULED: Final = 2


class Encoded(NamedTuple):
    """A message to send: its JSON, whether that comes again, and its buffers."""

    text: bytes
    again: bool
    buffers: list[Buffer]


class Outcome(NamedTuple):
    """What became of a batch.

    Attributes:
        start_ns, end_ns: see `Clocked`.
        flags: for each request the sum of DETACHED and RESCHEDULED, where it is that.
        responses: those sent before the model returned, with the numbers of their requests.
    """

    start_ns: int
    end_ns: int
    flags: Sequence[int]
    responses: Sequence[tuple[int, InferResponse]]


class Texts:
    """The JSON of what comes again, by what it is made of; bounded."""

    def __init__(self) -> None:
        self._texts: dict[Hashable, bytes] = {}

    def of(self, key: Hashable, fields: Callable[[Any], Fields], value: Any) -> bytes:
        """Return the JSON of a value's fields; made once for each key, each time for None."""
        text = self._texts.get(key)
        if text is None:
            text = encoded(fields(value))
            if len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            if key is not None:
                self._texts[key] = text
        return text


def encode_batch(numbered: Mapping[int, Request], texts: Texts) -> Encoded:
    """Return the message that has a batch executed, whose requests are known by their numbers."""
    parts, ids, numbers, tensors = list[bytes](), b"", array("q"), list[Buffer]()
    again = True
    for number, request in numbered.items():
        infer = request.infer
        key = _request_key(infer)
        again = again and key is not None
        parts.append(texts.of(key, common_request_fields, infer))
        name = infer.id.encode()
        ids += name
        deadline_us = int(min(infer.deadline, _LATEST_S) * 1e6)
        numbers.extend((number, deadline_us, len(name), *add_tensors(infer.inputs, tensors)))
    text = b'{"do":"execute","requests":[%b]}' % b",".join(parts)
    return Encoded(text, again, [numbers.tobytes(), ids, *tensors])


def read_batch(batch: Sequence[Fields], payload: Payload) -> list[tuple[int, InferRequest]]:
    """Undo `encode_batch`; `batch` has what its JSON says of each request."""
    rows = _rows(payload, [_ABOUT + len(fields["inputs"]) for fields in batch])
    ids, requests = bytes(payload.read(sum([row[2] for row in rows]))), []
    for fields, (number, deadline_us, id_bytes, *sizes) in zip(batch, rows, strict=True):
        name, ids = ids[:id_bytes].decode(), ids[id_bytes:]
        request = read_request(fields, sizes, payload, id=name, deadline=deadline_us / 1e6)
        requests.append((number, request))
    return requests


def encode_outcome(outcome: Outcome, ids: Mapping[int, str], texts: Texts) -> Encoded:
    """Return the reply to a batch whose requests have these ids, by their numbers."""
    start_ns, end_ns, flags, responses = outcome
    numbers, parts, tensors = array("q", (start_ns, end_ns, *flags)), list[bytes](), list[Buffer]()
    again = True
    for number, response in responses:
        known = response.id == ids[number]
        key = _response_key(response) if known else None
        again = again and key is not None
        parts.append(texts.of(key, common_response_fields if known else _with_id, response))
        numbers.extend((number, *add_tensors(response.outputs, tensors)))
    return Encoded(b'{"value":[%b]}' % b",".join(parts), again, [numbers.tobytes(), *tensors])


def read_outcome(responses: Sequence[Fields], payload: Payload, ids: Mapping[int, str]) -> Outcome:
    """Undo `encode_outcome`; `responses` has what its JSON says of each response."""
    rows = _rows(payload, [2 + len(ids), *[1 + len(fields["outputs"]) for fields in responses]])
    start_ns, end_ns, *flags = rows[0]
    found = [
        (number, read_response(fields, sizes, payload, id=ids[number]))
        for fields, (number, *sizes) in zip(responses, rows[1:], strict=True)
    ]
    return Outcome(start_ns, end_ns, flags, found)


def _rows(payload: Payload, lengths: Sequence[int]) -> list[list[int]]:
    numbers, rows, start = array("q"), [], 0
    numbers.frombytes(payload.read(numbers.itemsize * sum(lengths)))
    for length in lengths:
        rows.append(numbers[start : start + length].tolist())
        start += length
    return rows


def _with_id(response: InferResponse) -> Fields:
    fields = common_response_fields(response)
    fields["about"]["id"] = response.id
    return fields


def _request_key(infer: InferRequest) -> Hashable:
    """Return what an ordinary request's fields are made of; None for others."""
    if infer.parameters or infer.sequence_id or infer.sequence_start or infer.sequence_end:
        return None
    if infer.trace or infer.priority or infer.timeout_us:
        return None
    return (infer.model_name, infer.model_version, infer.outputs, infer.chain, _key(infer.inputs))


def _response_key(response: InferResponse) -> Hashable:
    if response.failure is not None or response.parameters:
        return None
    return (response.model_name, response.model_version, response.final, _key(response.outputs))


def _key(tensors: Sequence[Tensor]) -> Hashable:
    return tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in tensors])
