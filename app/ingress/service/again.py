"""A recorded request sent again, and its answer beside the recorded one."""

import asyncio
from itertools import zip_longest
from time import monotonic
from typing import Any, Final

import msgspec

from app.core.errors import Failure, invalid_arg
from app.core.inference import Call
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.ingress.service.interface import InferenceService
from nereid_client.comparison.compare import compare
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.rows import KEPT, Row, TapeResponse, TapeTensor

_MOST_S: Final = 60.0
"""Until the answer is given up."""
_MOST_RESPONSES: Final = 64
_MOST_BYTES: Final = 64 << 20


class ComparedOutput(msgspec.Struct, frozen=True):
    """An output of both answers: of which response, and what `OutputDifference` says of it.

    Attributes:
        fault: why it is not as it was; "" if it is within the tolerances.
        text: the same in words.
    """

    response: int
    output: str
    fault: str
    text: str
    absolute: float
    cosine: float
    within: float


class Again(msgspec.Struct, frozen=True):
    """The new answer.

    Attributes:
        version: that has answered.
        responses: as rows have them.
        left_out: responses that are too many, or too large, to be shown.
        compared: the outputs of both; those of which the tape has no values are not among them.
        not_compared: names of the latter.
    """

    version: str
    responses: tuple[TapeResponse, ...]
    left_out: int
    compared: tuple[ComparedOutput, ...]
    not_compared: tuple[str, ...]


async def send_again(service: InferenceService, row: Row, version: str) -> Again:
    """Send a recorded request to a version of its model, "" for the one that the version policy chooses.

    It is a request like any other, so that it is recorded, traced, counted and limited too; neither
    deadline, priority nor sequence of the recorded one are repeated.

    Raises:
        InferError: INVALID_ARG for a row that cannot be sent again; others as requests have.
    """
    if row.why_not:
        raise invalid_arg(f"row '{row.key}' cannot be sent again: {row.why_not}")
    if row.sequence_id:
        raise invalid_arg(f"row '{row.key}' cannot be sent again: it belongs to a sequence")
    entry = service.resolve(row.model, version)
    answer = _Answer()
    call = service.submit(entry, _request(row, version), answer.take)
    try:
        await asyncio.wait_for(answer.ended, _MOST_S)
    except TimeoutError:
        raise invalid_arg(f"no answer came within {_MOST_S:g} s") from None
    finally:
        if not answer.ended.done() or answer.ended.cancelled():
            _cancel(call)
    compared, unknown = await asyncio.to_thread(_compared, row.responses, answer.responses)
    return Again(answer.version, tuple(answer.responses), answer.left_out, compared, unknown)


def _cancel(call: Call) -> None:
    call.cancel()


def _request(row: Row, version: str) -> InferRequest:
    return InferRequest(
        row.model,
        version,
        tuple(Tensor(each.name, each.datatype, each.shape, each.data) for each in row.inputs),
        tuple(RequestedOutput(name) for name in row.requested),
        row.id,
        row.parameters,
        deadline=monotonic() + _MOST_S,
    )


class _Answer:
    """The responses of a request, copied: their memory is lent."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.responses: list[TapeResponse] = []
        self.version = ""
        self.left_out = 0
        self._begun = monotonic()
        self._room = _MOST_BYTES

    def take(self, response: InferResponse) -> None:
        self.version = response.model_version or self.version
        if response.outputs or response.failure is not None:
            self._keep(response)
        if response.final and not self.ended.done():
            self.ended.set_result(None)

    def _keep(self, response: InferResponse) -> None:
        size = sum(len(memoryview(each.data).cast("B")) for each in response.outputs)
        if len(self.responses) >= _MOST_RESPONSES or size > self._room:
            self.left_out += 1
            return
        self._room -= size
        offset = int((monotonic() - self._begun) * 1e9)
        self.responses.append(_response(response, offset))


def _response(response: InferResponse, offset: int) -> TapeResponse:
    failure: Failure | None = response.failure
    code, text = ("", "") if failure is None else (failure.code.name, failure.message)
    return TapeResponse(offset, tuple(map(_kept, response.outputs)), code, text, response.final)


def _kept(tensor: Tensor) -> TapeTensor:
    data = bytes(tensor.data)
    return TapeTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data, len(data))


def _compared(
    recorded: tuple[TapeResponse, ...], answered: list[TapeResponse]
) -> tuple[tuple[ComparedOutput, ...], tuple[str, ...]]:
    rules = ComparisonRules()
    found: list[ComparedOutput] = []
    unknown: dict[str, None] = {}
    with_outputs = [each for each in recorded if each.outputs]
    for number, (before, now) in enumerate(zip_longest(with_outputs, _outputs(answered)), 1):
        ours: Any = now.outputs if now is not None else ()
        theirs: Any = before.outputs if before is not None else ()
        lost = {each.name for each in theirs if each.state != KEPT}
        unknown |= dict.fromkeys(sorted(lost))
        kept = [[each for each in outputs if each.name not in lost] for outputs in (theirs, ours)]
        for each in compare(rules, *kept).outputs:
            figures = each.absolute, each.cosine, each.within
            found.append(ComparedOutput(number, each.output, each.fault, str(each), *figures))
    return tuple(found), tuple(unknown)


def _outputs(answered: list[TapeResponse]) -> list[TapeResponse]:
    return [each for each in answered if each.outputs]
