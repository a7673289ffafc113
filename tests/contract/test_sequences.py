"""Sequences over every client: a number or a string names them, START opens and END closes them."""

import itertools
import uuid
from typing import Any

import numpy as np
import pytest

from tests.contract.drivers import Driver, GrpcDriver, Input, Refused, Response, StreamRequest
from tests.voice import CHUNK, CONTEXT, RATE, voice

NUMBERS = itertools.count(1 + uuid.uuid4().int % 2**40)
MISSING = "must specify the START flag on the first request of the sequence"


@pytest.fixture(params=["number", "string"])
def sequence_id(request: pytest.FixtureRequest) -> int | str:
    """An id no other case uses."""
    return next(NUMBERS) if request.param == "number" else f"call {uuid.uuid4()}"


def value(number: int) -> Input:
    return Input("INPUT", np.full((1, 1), number, np.int32), "INT32")


def output(response: object) -> int:
    assert isinstance(response, Response), response
    return int(response.array("OUTPUT").ravel()[0])


def test_start_is_seen_by_the_model(client: Driver, sequence_id: int | str) -> None:
    def ask(number: int, **flags: Any) -> int:
        answer = client.infer("simple_sequence", [value(number)], sequence_id=sequence_id, **flags)
        return output(answer)

    assert ask(10, sequence_start=True) == 11
    assert [ask(20), ask(30, sequence_end=True)] == [20, 30]
    with pytest.raises(Refused) as caught:
        ask(40)
    assert caught.value.refusal.status in ("400", "INVALID_ARGUMENT")
    assert caught.value.refusal.text == (
        f"inference request for sequence {sequence_id} to model 'simple_sequence' {MISSING}"
    )
    assert ask(50, sequence_start=True, sequence_end=True) == 51


def test_end_adds_the_correlation_id(client: Driver) -> None:
    """As Triton's sequence clients ask with `-d`: numbers of one model, strings of digits of another."""
    number, text = next(NUMBERS), str(next(NUMBERS) % 2**30)
    values = [20, -11, -7, -5, 1]
    totals = [sum(values[: place + 1]) for place in range(len(values))]
    for model, sequence_id, expected in (
        ("simple_dyna_sequence", number, [21, -11, -7, -5, _int32(1 + number)]),
        ("simple_string_dyna_sequence", text, [*totals[:-1], totals[-1] + int(text)]),
    ):
        found = [
            output(
                client.infer(
                    model,
                    [value(each)],
                    sequence_id=sequence_id,
                    sequence_start=place == 0,
                    sequence_end=place == len(values) - 1,
                )
            )
            for place, each in enumerate(values)
        ]
        assert found == expected


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("model", "wrong", "given", "expected"),
    [
        ("simple_dyna_sequence", "text", "BYTES", "UINT64"),
        ("simple_string_dyna_sequence", 1, "UINT64", "BYTES"),
    ],
)
def test_correlation_id_of_the_other_type(
    client: Driver, model: str, wrong: int | str, given: str, expected: str
) -> None:
    with pytest.raises(Refused) as caught:
        client.infer(model, [value(1)], sequence_id=wrong, sequence_start=True, request_id="7")
    assert caught.value.refusal.text == (
        f"[request id: 7] sequence batching control 'CORRID' data-type is '{given}', but model '{model}'"
        f" expects '{expected}'"
    )


def test_sequence_without_id(client: Driver) -> None:
    with pytest.raises(Refused) as caught:
        client.infer("simple_sequence", [value(1)])
    assert caught.value.refusal.text == (
        "inference request to model 'simple_sequence' must specify a non-zero or non-empty correlation ID"
    )


def test_batch_of_two(client: Driver, sequence_id: int | str) -> None:
    two = Input("INPUT", np.zeros((2, 1), np.int32), "INT32")
    with pytest.raises(Refused) as caught:
        client.infer("simple_sequence", [two], sequence_id=sequence_id, sequence_start=True)
    assert caught.value.refusal.text == (
        "inference request to model 'simple_sequence' must specify batch-size 1 due to requirements of"
        " sequence batcher"
    )


def test_stream_of_two_sequences(grpc_client: GrpcDriver) -> None:
    first, second = next(NUMBERS), f"call {uuid.uuid4()}"
    requests = [
        StreamRequest(
            "simple_sequence",
            [value(number)],
            options={
                "sequence_id": sequence_id,
                "sequence_start": number == 0,
                "sequence_end": number == 9,
                "request_id": str(place),
            },
        )
        for number in range(10)
        for place, sequence_id in enumerate((first, second))
    ]
    responses = grpc_client.responses(requests)
    for place in ("0", "1"):
        mine = [output(response) for response in responses if response.id == place]
        assert mine == [1, *range(1, 10)]


def test_stream_of_three_sequences_with_controls(grpc_client: GrpcDriver) -> None:
    """All of them pipelined on one stream, as `simple_grpc_sequence_stream_infer_client.py -d` sends them."""
    values = [11, 7, 5, 3, 2, 0, 1]
    first, second, third = 1000 + 2 * next(NUMBERS) % 2**20, 1001 + 2 * next(NUMBERS) % 2**20, "1002"
    sent = (
        ("simple_dyna_sequence", first, [0, *values]),
        ("simple_dyna_sequence", second, [100, *(-each for each in values)]),
        ("simple_string_dyna_sequence", third, [20, *(-each for each in values)]),
    )
    requests = [
        StreamRequest(
            model,
            [value(each)],
            options={
                "sequence_id": sequence_id,
                "sequence_start": place == 0,
                "sequence_end": place == len(values),
                "request_id": f"{model} {sequence_id}",
            },
        )
        for model, sequence_id, given in sent
        for place, each in enumerate(given)
    ]
    responses = grpc_client.responses(requests)
    found = [
        [output(response) for response in responses if response.id == f"{model} {sequence_id}"]
        for model, sequence_id, _ in sent
    ]
    assert found == [
        [1, *values[:-1], 1 + first],
        [101, *(-each for each in values[:-1]), second - 1],
        [20, 9, 2, -3, -6, -8, -8, -9 + 1002],
    ]


def test_speech_agrees_with_the_library(client: Driver, sequence_id: int | str) -> None:
    """The server keeps the state of the network; the library keeps its own."""
    torch = pytest.importorskip("torch")
    silero_vad = pytest.importorskip("silero_vad")
    library, sound = silero_vad.load_silero_vad(onnx=True), voice(1)
    context = np.zeros((1, CONTEXT), np.float32)
    rate = Input("sr", np.array([RATE], np.int64), "INT64")
    starts = range(0, len(sound) - CHUNK + 1, CHUNK)
    expected, found = [], []
    for start in starts:
        chunk = sound[start : start + CHUNK]
        window = np.concatenate([context, chunk[None]], axis=1)
        context = window[:, -CONTEXT:]
        expected.append(library(torch.from_numpy(chunk), RATE).item())
        answer = client.infer(
            "silero_vad",
            [Input("input", window, "FP32"), rate],
            sequence_id=sequence_id,
            sequence_start=start == 0,
            sequence_end=start == starts[-1],
        )
        assert answer.names == ["output"]
        found.append(float(answer.array("output").ravel()[0]))
    assert max(found) > 0.9
    np.testing.assert_allclose(found, expected, atol=1e-5)
