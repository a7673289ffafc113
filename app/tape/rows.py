"""Makes the row of a request that was recorded, as it is written."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode
from app.core.tape.redaction import DEFAULTS, Redaction
from app.core.tensors import InferRequest, InferResponse, Parameters, Tensor
from app.tape.taken import Missing, Rules, Taken
from nereid_client.tape.rows import CANCELLED, KEPT, NO_REPLAY, OMITTED, PARAMETERS, REDACTED
from nereid_client.tape.segments import Described, encode_fields

PACKED_BYTES: Final = 16 << 10
"""Rows up to this size are written down by the event loop; the tensors of larger ones are not copied."""


class Waiting(NamedTuple):
    """A row that waits for the disk.

    Attributes:
        at: when it came, by the queue's clock.
        model: its model.
        wall_ns: its arrival.
        nbytes: what it keeps in use.
        row: what is written; or what it will be made of, by the thread that writes.
    """

    at: float
    model: str
    wall_ns: int
    nbytes: int
    row: "bytes | Taken"


def is_small(taken: Taken) -> bool:
    """Return whether a row takes no longer to write down than to keep."""
    return taken.nbytes <= PACKED_BYTES and not taken.rules.redaction.hashes


def plain_row(
    rules: Rules,
    ingress: str,
    number: int,
    request: InferRequest,
    response: InferResponse,
    moments: tuple[int, int, int],
    token: str,
) -> bytes | None:
    """Return the row of a request chosen at random whose only response is no failure, as most are.

    It is what `encoded` makes of `Taken`, in half the time.

    Args:
        rules: of the model.
        ingress, number: see `Row`.
        request: as it was submitted.
        response: to it.
        moments: of arrival since the epoch, the same by `monotonic_ns`, and from then to the response, in ns.
        token: name of the client's token.

    Returns:
        None for one that is to be made of `Taken`: it has parameters, is large or hashed, or in memory of its
        client.

    Raises:
        ValueError: its names are too long.
    """
    redact = rules.redaction
    if request.parameters or request.regions or response.failure or not response.final or redact.hashes:
        return None
    body: list[Any] = []
    flags = {NO_REPLAY} if rules.spec.replay == "never" else set[str]()
    inputs = _tensors(redact, request.inputs, body, flags)
    answer = _response(redact, moments[2], response, body, flags)
    if sum(map(len, body)) > PACKED_BYTES:
        return None
    plain = _plain(request, moments, ingress, number, rules.model, response.model_version, token)
    said: tuple[Any, ...] = ({}, inputs, (answer,), "rate", rules.spec.rate or 0.0, sorted(flags))
    return b"".join(encode_fields((*plain, *said), body))


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
    moments, model = (taken.wall_ns, taken.arrived), taken.rules.model
    plain = _plain(request, moments, ingress, taken.number, model, version, taken.token)
    said = (kept, inputs, responses, taken.reason, taken.probability, sorted(flags))
    return encode_fields((*plain, *said), body)


def _plain(
    request: InferRequest,
    moments: tuple[int, ...],
    ingress: str,
    number: int,
    model: str,
    version: str,
    token: str,
) -> tuple[Any, ...]:
    """Return the fields of a row up to its parameters."""
    return (
        *moments[:2],
        ingress,
        number,
        model,
        request.model_version,
        version,
        request.id,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
        token,
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
