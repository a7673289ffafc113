"""Requests with many answers, and sequences of requests: every answer is compared, and their order too."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from tests.long.client import TIMEOUT_S, Client, check, tensors
from tests.long.outcomes import NO_ANSWER, Refusal, Refused, Wrong, refusals


class Stream:
    """A gRPC stream of inference."""

    def __init__(self, client: Client) -> None:
        self._arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        # A client that has had an error on its stream may not start another.
        self._client = tritonclient.grpc.InferenceServerClient(client.grpc_address)
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(kind is not None)
        self._client.close()

    def stop(self, cancel: bool) -> None:
        """End the stream, with what is under way on it or after that."""
        self._client.stop_stream(cancel_requests=cancel)

    def send(self, model: str, inputs: dict[str, np.ndarray], **options: Any) -> None:
        """Send a request."""
        with refusals():
            self._client.async_stream_infer(model, tensors(tritonclient.grpc, inputs), **options)

    def next(self) -> Any:
        """The next result.

        Raises:
            Refused: an error came, or nothing in time.
        """
        try:
            result, error = self._arrived.get(timeout=TIMEOUT_S)
        except Empty:
            raise Refused(Refusal("TIMEOUT", "nothing came on the stream")) from None
        with refusals():
            if error is not None:
                raise error
        return result


def _repeat(values: np.ndarray, delay_ms: int) -> dict[str, np.ndarray]:
    delays = np.full(len(values), delay_ms, np.uint32)
    return {"IN": values, "DELAY": delays, "WAIT": np.zeros(1, np.uint32)}


def repeated(client: Client) -> None:
    """Several requests of a decoupled model on one stream: each one's answers in order."""
    wanted = {
        str(n): [client.random.randrange(1 << 30) for _ in range(client.random.choice((0, 1, 5, 20)))]
        for n in range(3)
    }
    found: dict[str, list[int]] = {name: [] for name in wanted}
    open_requests = set(wanted)
    with Stream(client) as stream:
        for name, values in wanted.items():
            inputs = _repeat(np.array(values, np.int32), client.random.choice((0, 0, 2)))
            stream.send("repeat_int32", inputs, request_id=name, enable_empty_final_response=True)
        while open_requests:
            result = stream.next()
            message = result.get_response()
            if message.outputs:
                found[message.id].append(int(result.as_numpy("OUT")[0]))
            if message.parameters["triton_final_response"].bool_param:
                open_requests.remove(message.id)
    if found != wanted:
        raise Wrong(f"repeat_int32 on a stream: {found} instead of {wanted}")


def given_up(client: Client) -> None:
    """A stream that is cancelled in the midst of its answers."""
    values = np.arange(40, dtype=np.int32)
    with Stream(client) as stream:
        stream.send("repeat_int32", _repeat(values, 5))
        for value in range(client.random.choice((0, 1, 4))):
            check(stream.next().as_numpy("OUT"), values[value : value + 1], "repeat_int32 before cancel")
        stream.stop(cancel=True)


def _prompt(client: Client) -> tuple[str, int, int]:
    """A text, how often each answer has it and how many answers there are to be."""
    return (
        f"<{client.random.getrandbits(64):x}>",
        client.random.choice((1, 40, 30_000)),
        client.random.choice((1, 4, 9)),
    )


def streamed(client: Client) -> None:
    """A decoupled model with long answers, over gRPC."""
    text, size, count = _prompt(client)
    inputs = {"PROMPT": np.array([text.encode()], np.object_), "STREAM": np.array([True])}
    with Stream(client) as stream:
        stream.send(
            "mock_llm",
            inputs,
            parameters={"REPETITION": count, "SIZE": size},
            enable_empty_final_response=True,
        )
        for _ in range(count):
            check(stream.next().as_numpy("TEXT"), np.array([text.encode() * size], np.object_), "mock_llm")
        if stream.next().get_response().outputs:
            raise Wrong(f"mock_llm: more than {count} answers")


def generated(client: Client) -> None:
    """The same with server-sent events."""
    text, size, count = _prompt(client)
    body = {"PROMPT": text, "STREAM": True, "REPETITION": count, "SIZE": size}
    found = [event["TEXT"] for event in _events(client, body)]
    if found != [text * size] * count:
        lengths = [len(each) for each in found]
        raise Wrong(f"generate_stream: {count} times {len(text) * size} characters expected, got {lengths}")


def generated_once(client: Client) -> None:
    """One answer of `generate`."""
    text = "x" * client.random.choice((1, 2000, 80_000))
    answer = _post(client, "generate", {"PROMPT": text, "STREAM": False})
    if json.loads(answer)["TEXT"] != text:
        raise Wrong(f"generate: not what was asked with {len(text)} characters")


def _events(client: Client, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    *blocks, rest = _post(client, "generate_stream", body).split(b"\n\n")
    if rest or not all(block.startswith(b"data: ") for block in blocks):
        raise Refused(Refusal(NO_ANSWER, f"the events end with {rest[:80]!r}"))
    for block in blocks:
        event = json.loads(block[6:])
        if "error" in event:
            raise Refused(Refusal("", event["error"]))
        yield event


def _post(client: Client, verb: str, body: dict[str, Any]) -> bytes:
    with refusals(), closing(http.client.HTTPConnection(client.address, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", f"/v2/models/mock_llm/{verb}", json.dumps(body))
        response = connection.getresponse()
        answer = response.read()
    if response.status != 200:
        raise Refused(Refusal(str(response.status), answer.decode(errors="replace")))
    return answer


def _sequence_id(client: Client) -> int | str:
    number = client.random.getrandbits(63) + 1
    return number if client.random.random() < 0.7 else f"sequence-{number}"


def totalled(client: Client) -> None:
    """A sequence of a Python model: what is added up is what this sequence has sent."""
    protocol, sequence_id = client.random.choice(("http", "grpc")), _sequence_id(client)
    length, left_open = client.random.choice((1, 3, 12)), client.random.random() < 0.1
    size = client.random.choice((4, 20_000))
    total = np.zeros((1, size), np.float32)
    for step in range(length):
        values = client.values((size,)) % 1000
        total = total + values
        output = client.infer(
            "running_total",
            {"INPUT0": values},
            protocol,
            sequence_id=sequence_id,
            sequence_start=step == 0,
            sequence_end=step == length - 1 and not left_open,
        )
        check(output("OUTPUT0"), total, f"running_total of {sequence_id!r} at step {step} of {length}")


def accumulated(client: Client) -> None:
    """A sequence with a slot of its own in the batch, over a stream."""
    sequence_id = client.random.getrandbits(31) + 1
    length, total = client.random.choice((1, 2, 8)), 0
    with Stream(client) as stream:
        for step in range(length):
            value = client.random.randrange(1000)
            total += value
            stream.send(
                "accumulator",
                {"INPUT": np.array([[value]], np.int32)},
                sequence_id=sequence_id,
                sequence_start=step == 0,
                sequence_end=step == length - 1,
            )
            what = f"accumulator of {sequence_id} at step {step} of {length}"
            check(stream.next().as_numpy("OUTPUT"), np.array([[total]], np.int32), what)


def without_start(client: Client) -> None:
    """A sequence that nobody has begun is refused."""
    try:
        client.infer("running_total", {"INPUT0": client.values((4,))}, sequence_id=_sequence_id(client))
    except Refused as error:
        if "must specify the START flag" not in error.refusal.text:
            raise
    else:
        raise Wrong("running_total: a sequence without a beginning was answered")
