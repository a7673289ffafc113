"""Makes the row of a request that was recorded."""

from collections.abc import Sequence

from app.core.errors import ErrorCode
from app.core.tape.redaction import Redaction
from app.core.tensors import InferResponse, Tensor
from app.tape.taken import Missing, Taken
from nereid_client.tape.rows import (
    CANCELLED,
    NO_REPLAY,
    OMITTED,
    PARAMETERS,
    REDACTED,
    Row,
    TapeResponse,
    TapeTensor,
)


def row_of(taken: Taken, ingress: str, number: int) -> Row:
    """Return the row of a request.

    Args:
        taken: the request with its responses.
        ingress: see `Row`.
        number: see `Row`.
    """
    request, rules = taken.request, taken.rules
    redact = rules.redaction
    inputs = _tensors(redact, request.inputs)
    responses = tuple([_response(redact, offset, response) for offset, response in taken.responses])
    return Row(
        taken.wall_ns,
        taken.arrived,
        ingress,
        number,
        rules.model,
        request.model_version,
        next((each.model_version for _, each in taken.responses if each.model_version), ""),
        request.id,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
        taken.token,
        tuple([output.name for output in request.outputs]),
        redact.parameters(request.parameters) if request.parameters else {},
        inputs,
        responses,
        taken.reason,
        taken.probability,
        _flags(taken, inputs, responses),
    )


def _tensors(redact: Redaction, tensors: Sequence[Tensor]) -> tuple[TapeTensor, ...]:
    return tuple([_tensor(redact, tensor) for tensor in tensors])


def _tensor(redact: Redaction, tensor: Tensor) -> TapeTensor:
    if type(tensor.data) is not Missing:
        return redact.tensor(tensor)
    treatment = redact.treatment(tensor.name, tensor.datatype)
    state = "size" if treatment == "size" else OMITTED
    nbytes = 0 if treatment == "drop" else tensor.data.nbytes
    return TapeTensor(tensor.name, tensor.datatype, tensor.shape, b"", nbytes, state)


def _response(redact: Redaction, offset_ns: int, response: InferResponse) -> TapeResponse:
    outputs = _tensors(redact, response.outputs)
    failure = response.failure
    if failure is None:
        return TapeResponse(offset_ns, outputs, "", "", response.final)
    return TapeResponse(offset_ns, outputs, failure.code.value, failure.message, response.final)


def _flags(
    taken: Taken, inputs: tuple[TapeTensor, ...], responses: tuple[TapeResponse, ...]
) -> tuple[str, ...]:
    request, rules, flags = taken.request, taken.rules, set(taken.flags)
    if _redacted(rules.redaction, inputs) or any(
        _redacted(rules.redaction, each.outputs) for each in responses
    ):
        flags.add(REDACTED)
    if request.parameters and rules.redaction.leaves_out(request.parameters):
        flags |= {REDACTED, PARAMETERS}
    if rules.spec.replay == "never":
        flags.add(NO_REPLAY)
    if any(each.code == ErrorCode.CANCELLED.value for each in responses):
        flags.add(CANCELLED)
    return tuple(sorted(flags))


def _redacted(redact: Redaction, tensors: tuple[TapeTensor, ...]) -> bool:
    return any(redact.treatment(tensor.name, tensor.datatype) != "keep" for tensor in tensors)
