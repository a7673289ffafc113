"""Makes the row of a request that was recorded, as it is written."""

from collections.abc import Sequence
from typing import Any, Final

from app.core.errors import ErrorCode
from app.core.tape.redaction import DEFAULTS, Redaction
from app.core.tensors import InferResponse, Parameters, Tensor
from app.tape.taken import Missing, Taken
from nereid_client.tape.rows import CANCELLED, KEPT, NO_REPLAY, OMITTED, PARAMETERS, REDACTED
from nereid_client.tape.segments import Described, encode_fields

PACKED_BYTES: Final = 16 << 10
"""Rows up to this size are written down by the event loop; the tensors of larger ones are not copied."""


class Packed:
    """A row that is written down.

    Attributes:
        model: its model.
        wall_ns: its arrival.
        nbytes: its size.
        data: it.
    """

    __slots__ = ("data", "model", "nbytes", "wall_ns")

    def __init__(self, taken: Taken, parts: Sequence[Any]) -> None:
        self.model, self.wall_ns = taken.rules.model, taken.wall_ns
        self.data = b"".join(parts)
        self.nbytes = len(self.data)


def is_small(taken: Taken) -> bool:
    """Return whether a row takes no longer to write down than to keep."""
    return taken.nbytes <= PACKED_BYTES and not taken.rules.redaction.hashes


def encoded(taken: Taken, ingress: str) -> list[Any]:
    """Return the buffers of a request's row.

    Args:
        taken: the request with its responses.
        ingress: see `Row`.

    Raises:
        ValueError: its names and parameters are too long.
    """
    request, redact, flags = taken.request, taken.rules.redaction, set(taken.flags)
    body: list[Any] = []
    inputs = _tensors(redact, request.inputs, body, flags)
    responses, version = [], ""
    for offset_ns, response in taken.responses:
        version = version or response.model_version
        responses.append(_response(redact, offset_ns, response, body, flags))
    kept = _parameters(taken, flags) if request.parameters else {}
    if taken.rules.spec.replay == "never":
        flags.add(NO_REPLAY)
    said = (kept, inputs, responses, taken.reason, taken.probability, sorted(flags))
    return encode_fields((*_plain(taken, ingress, version), *said), body)


def _plain(taken: Taken, ingress: str, version: str) -> tuple[Any, ...]:
    """Return the fields of a row up to its parameters."""
    request = taken.request
    return (
        taken.wall_ns,
        taken.arrived,
        ingress,
        taken.number,
        taken.rules.model,
        request.model_version,
        version,
        request.id,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
        taken.token,
        [output.name for output in request.outputs],
    )


def _parameters(taken: Taken, flags: set[str]) -> Parameters:
    redact, given = taken.rules.redaction, taken.request.parameters
    if redact.leaves_out(given):
        flags |= {REDACTED, PARAMETERS}
    return redact.parameters(given)


def _tensors(
    redact: Redaction, tensors: Sequence[Tensor], body: list[Any], flags: set[str]
) -> list[Described]:
    found, fields = [], redact.fields
    for tensor in tensors:
        name, datatype, data = tensor.name, tensor.datatype, tensor.data
        treatment = fields.get(name) or DEFAULTS.get(datatype, "keep")
        if treatment == "keep" and type(data) is not Missing:  # most are, and calls take as long as the rest
            size = len(data)
            if size:
                body.append(data)
            found.append((name, datatype, tensor.shape, size, KEPT, size))
            continue
        if treatment != "keep":
            flags.add(REDACTED)
        if type(data) is Missing:
            state = "size" if treatment == "size" else OMITTED
            nbytes, data = (0 if treatment == "drop" else data.nbytes), b""
        else:
            state, nbytes, data = redact.treated(treatment, datatype, data)
        size = len(data)
        if size:
            body.append(data)
        found.append((name, datatype, tensor.shape, nbytes, state, size))
    return found


def _response(
    redact: Redaction, offset_ns: int, response: InferResponse, body: list[Any], flags: set[str]
) -> tuple[Any, ...]:
    outputs = _tensors(redact, response.outputs, body, flags)
    failure = response.failure
    if failure is None:
        return offset_ns, outputs, "", "", response.final
    if failure.code is ErrorCode.CANCELLED:
        flags.add(CANCELLED)
    return offset_ns, outputs, failure.code.value, failure.message, response.final
