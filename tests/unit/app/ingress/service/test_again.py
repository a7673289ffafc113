"""Recorded requests that are sent again, and their answers beside the recorded ones."""

from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.tensors import InferResponse, Tensor
from app.ingress.service import again
from app.ingress.service.again import send_again
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from tests.unit.app.http_fakes import FakeService
from tests.unit.client.tape.made import row


def tensor(name: str, *values: float, **changed: Any) -> TapeTensor:
    data = np.array(values, "<f4").tobytes()
    return TapeTensor(name, "FP32", (len(values),), data, len(data), **changed)


def recorded(*outputs: TapeTensor, **changed: Any) -> Row:
    answer = TapeResponse(1, outputs, final=True)
    fields: dict[str, Any] = {"model": "identity", "id": "a", "timeout_us": 1, "priority": 9}
    return row(**fields | {"inputs": (tensor("INPUT0", 1, 2),), "responses": (answer,)} | changed)


async def test_answer_is_compared_output_by_output() -> None:
    same = await send_again(FakeService(), recorded(tensor("OUTPUT0", 1, 2)), "")
    assert [(each.output, each.fault) for each in same.compared] == [("OUTPUT0", "")]
    assert (same.version, same.left_out, same.not_compared) == ("1", 0, ())
    other = await send_again(FakeService(), recorded(tensor("OUTPUT0", 1, 5), tensor("GONE", 1)), "1")
    assert {each.output: each.fault for each in other.compared} == {"OUTPUT0": "values", "GONE": "missing"}


async def test_output_that_was_not_kept_is_not_compared() -> None:
    found = await send_again(FakeService(), recorded(TapeTensor("OUTPUT0", "FP32", (2,), b"", 8, "size")), "")
    assert (found.compared, found.not_compared) == ((), ("OUTPUT0",))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"inputs": (TapeTensor("INPUT0", "BYTES", (1,), b"", 8, "size"),)}, "was not kept"),
        ({"flags": ("no-replay",)}, "replay: never"),
        ({"sequence_id": 7}, "sequence"),
    ],
)
async def test_row_that_is_not_to_be_sent_is_refused(changed: dict[str, Any], why: str) -> None:
    service = FakeService()
    with pytest.raises(InferError, match=why) as caught:
        await send_again(service, recorded(**changed), "")
    assert (caught.value.code, service.requests) == (ErrorCode.INVALID_ARG, 0)


async def test_failure_is_an_answer() -> None:
    service = FakeService()
    service.failure = unavailable("no room")
    found = await send_again(service, recorded(tensor("OUTPUT0", 1)), "")
    assert [(each.code, each.error) for each in found.responses] == [("UNAVAILABLE", "no room")]
    assert [each.fault for each in found.compared] == ["missing"]


async def test_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "_MOST_S", 0.0)
    service = FakeService()
    service.hold = True
    with pytest.raises(InferError, match="no answer came"):
        await send_again(service, recorded(), "")
    assert service.calls[0].cancelled
    request, _ = service.held[0]
    assert (request.timeout_us, request.priority, request.id) == (0, 0, "a")


async def test_responses_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "_MOST_BYTES", 12)

    class Large(FakeService):
        def answer(self, request: Any) -> InferResponse:
            return InferResponse("identity", "1", (Tensor("OUTPUT0", "UINT8", (13,), b"x" * 13),))

    found = await send_again(Large(), recorded(), "")
    assert (found.responses, found.left_out) == ((), 1)
