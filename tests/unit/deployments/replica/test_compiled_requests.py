"""The compiled way of plain requests beside Python's: the same checks, the same objects."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.request_check import RequestChecker
from app.core.datatypes import pack_bytes
from app.core.errors import FailureReason, InferError, invalid_arg
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor, failed
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages, plain_check
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.replica.compiled_requests import compiled_requests
from deployments.scheduling.queue import queue_full

pytest.importorskip("app.native.extension")

NATIVE = TransportSettings(data_plane="native")
messages: Any = compiled_messages(NATIVE)
INPUT = 'input { name: "%s" data_type: TYPE_%s dims: [ %s ] %s }'
CONFIGS = [
    text_format.Parse(f'name: "m" max_batch_size: {batch} output {{ name: "O" }} {inputs}', mc.ModelConfig())
    for batch in (0, 4)
    for inputs in (
        INPUT % ("A", "FP32", "-1", ""),
        INPUT % ("A", "FP32", "2", "") + INPUT % ("B", "INT8", "2, 1", "optional: true"),
        INPUT % ("A", "FP32", "-1, 2", "") + INPUT % ("B", "STRING", "-1", ""),
        INPUT % ("A", "FP32", "1", "") + INPUT % ("B", "INT8", "1", ""),
        "".join(INPUT % (f"I{n}", "FP32", "1", "") for n in range(9)),
        INPUT % ("A", "FP32", ", ".join("1" * 9), ""),
        INPUT % ("A", "FP32", "4294967296, 4294967296, 4294967296, 4294967296", ""),
        "",
    )
]
CHECKS = [(RequestChecker(config), plain_check(messages, config)) for config in CONFIGS]

sizes = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**32, 2**63, 2**64, True]))
tensors = st.builds(
    Tensor,
    st.sampled_from(["A", "A", "B", "I0", "é"]),
    st.sampled_from(["FP32", "FP32", "INT8", "BYTES"]),
    st.lists(sizes, max_size=3).map(tuple),
    st.one_of(
        st.integers(0, 10).map(lambda n: bytes(4 * n)),
        st.integers(0, 10).map(bytearray),
        st.integers(0, 40).map(lambda n: memoryview(bytes(n))),
        st.lists(st.binary(max_size=3), max_size=6).map(pack_bytes),
        st.just(RegionSlice("r", 0, 8)),
    ),
)
requests = st.builds(
    InferRequest,
    st.just("m"),
    st.just(""),
    st.lists(tensors, max_size=3).map(tuple),
    st.lists(st.sampled_from(["O", "O", "P"]).map(RequestedOutput), max_size=2).map(tuple),
)
FITTING = Tensor("A", "FP32", (2, 1), bytes(8))


@settings(max_examples=300)
@given(requests)
@example(InferRequest("m", "", (FITTING,)))
@example(InferRequest("m", "", (FITTING, FITTING)))
@example(InferRequest("m", "", (FITTING,), (RequestedOutput("O"), RequestedOutput("O"))))
def test_what_is_plainly_right_passes_every_check(request: InferRequest) -> None:
    for checker, compiled in CHECKS:
        rows = compiled.rows(request)
        assert not rows or rows == checker.check(request)


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        (0, (Tensor("A", "FP32", (-1,), b""),)),
        (1, (Tensor("A", "FP32", (2,), bytes(8)),)),
        (1, (Tensor("B", "INT8", (2, 1), bytearray(2)), Tensor("A", "FP32", (2,), memoryview(bytes(8))))),
        (2, (Tensor("A", "FP32", (3, 2), bytes(24)), Tensor("B", "BYTES", (2,), pack_bytes([b"", b"a"])))),
        (7, ()),
        (10, (Tensor("A", "FP32", (2, 3, 2), bytes(48)), Tensor("B", "BYTES", (2, 1), bytes(8)))),
        (8, (Tensor("A", "FP32", (3, 5), bytes(60)),)),
        (9, (Tensor("A", "FP32", (3, 2), bytes(24)),)),
        (11, (Tensor("A", "FP32", (3, 1), bytes(12)), Tensor("B", "INT8", (3, 1), bytes(3)))),
    ],
)
def test_ordinary_requests_are_plainly_right(config: int, inputs: tuple[Tensor, ...]) -> None:
    checker, compiled = CHECKS[config]
    request = InferRequest("m", "", inputs, (RequestedOutput("O"),))
    assert compiled.rows(request) == (checker.check(request) if config else 0)
    assert RequestChecker(CONFIGS[config], lambda _: 7).check(request) == 7


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        bytes(12),
        pack_bytes([b"", b"abc"]) + b"\0",
        pack_bytes([b"", b"abc"])[:-1],
        bytes(4) + b"\xff" * 4,
        RegionSlice("r", 0, 8),
        memoryview(bytes(16))[::2],
    ],
)
def test_strings_that_are_not_as_many_as_the_shape_says_need_every_check(data: Any) -> None:
    request = InferRequest(
        "m", "", (Tensor("A", "FP32", (2, 1, 2), bytes(16)), Tensor("B", "BYTES", (2, 1), data))
    )
    assert CHECKS[10][1].rows(request) == 0


class Model:
    """What a `ServedModel` has, recorded."""

    def __init__(self, durations: list[int] | None = None) -> None:
        self.calls: list[Any] = []
        self.submitted: list[QueuedRequest] = []
        self.refuses = False
        self.in_flight: set[QueuedRequest] = set()
        make = compiled_requests(NATIVE, CONFIGS[8], "3")
        assert make is not None
        names = ("submit", "deliver", "cancel", "refused", "record")
        called: dict[str, Any] = {name: self.recorded(name) for name in names}
        self.compiled = make(
            **called,
            read=self.read,
            write=self.write,
            scheduler=Scheduler(self),
            responses=self,
            in_flight=self.in_flight,
            durations=durations,
            many=6,
        )

    def read(self, request: InferRequest) -> InferRequest:
        """Return the request with the bytes of `PLACE`, as `read_inputs` does."""
        self.calls.append(("read", (request,)))
        if any(tensor.data == GONE for tensor in request.inputs):
            raise invalid_arg("gone")
        inputs = tuple(msgspec.structs.replace(tensor, data=FITTING.data) for tensor in request.inputs)
        return msgspec.structs.replace(request, inputs=inputs)

    def write(self, request: InferRequest, response: InferResponse) -> InferResponse:
        """Return the response without the data, as `write_outputs` does."""
        self.calls.append(("write", (request, response)))
        if not response.outputs:
            return failed(invalid_arg("gone"))
        outputs = tuple(msgspec.structs.replace(tensor, data=b"") for tensor in response.outputs)
        return msgspec.structs.replace(response, outputs=outputs)

    def recorded(self, name: str) -> Any:
        def call(*arguments: Any) -> str:
            self.calls.append((name, arguments))
            return name

        return call


class Scheduler:
    def __init__(self, model: Model) -> None:
        self._model = model

    def schedule(self, pending: QueuedRequest) -> None:
        if self._model.refuses:
            raise queue_full("")
        self._model.submitted.append(pending)


PLAIN = InferRequest("m", "", (FITTING,), id="id")
PLACE, GONE = RegionSlice("r", 0, 8), RegionSlice("gone", 0, 8)
SHARED = InferRequest("m", "", (Tensor("A", "FP32", (2, 1), PLACE),), id="id", regions=True)


def values(pending: QueuedRequest) -> dict[str, Any]:
    names = [name for kind in QueuedRequest.__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(pending, name) for name in names if name != "arrival_ns" and hasattr(pending, name)}


def test_a_queued_request_is_made_as_by_python() -> None:
    model = Model()
    sink = model.recorded("sink")
    cancel = model.compiled.submit(PLAIN, sink)
    (made,) = model.submitted
    expected = QueuedRequest(PLAIN, sink, model, 2)  # type: ignore[arg-type]
    expected.accepted, expected.nbytes = True, 8
    assert values(made) == values(expected) and type(made) is QueuedRequest
    assert 0 <= expected.arrival_ns - made.arrival_ns < 60e9
    assert model.in_flight == {made}
    cancel()
    assert model.calls == [("cancel", (made,))]


@pytest.mark.parametrize(
    "change",
    [{"inputs": ()}, {"outputs": (RequestedOutput("P"),)}, {"inputs": (FITTING,) * 2}],
)
def test_other_requests_are_left_to_python(change: dict[str, Any]) -> None:
    model = Model()
    request = msgspec.structs.replace(PLAIN, **change)
    submitted: object = model.compiled.submit(request, print)
    assert submitted == "submit"
    assert model.calls == [("submit", (request, print))] and not model.submitted


def test_tensors_in_client_memory_are_read_and_written() -> None:
    model = Model()
    model.compiled.submit(SHARED, model.recorded("sink"))
    (pending,) = model.submitted
    expected = QueuedRequest(model.read(SHARED), print, model, 2)  # type: ignore[arg-type]
    assert pending.infer == expected.infer and (pending.rows, pending.nbytes) == (2, 8)
    model.calls.clear()
    response = InferResponse("other", "9", (FITTING,))
    model.compiled.deliver(pending, response)
    model.compiled.deliver(pending, response)
    empty = Tensor("A", "FP32", (2, 1), b"")
    written, record, sent, again = model.calls
    assert written == ("write", (pending.infer, response)) and record[0] == "record"
    assert sent == ("sink", (InferResponse("m", "3", (empty,), "id"),))
    assert again == ("deliver", (pending, response)), "it is not written again here"


@pytest.mark.parametrize(("place", "shape", "calls"), [(GONE, (2, 1), 2), (PLACE, (1, 1), 1)])
def test_client_memory_that_cannot_be_read_is_left_to_python(
    place: RegionSlice, shape: tuple[int, ...], calls: int
) -> None:
    """What is not plainly right is not read here: Python would read it again."""
    model = Model()
    request = msgspec.structs.replace(SHARED, inputs=(Tensor("A", "FP32", shape, place),))
    submitted: object = model.compiled.submit(request, print)
    assert submitted == "submit" and not model.submitted
    assert model.calls == [("read", (request,)), ("submit", (request, print))][-calls:]


@pytest.mark.parametrize("cancelled", [True, False])
def test_client_memory_that_cannot_be_written_is_left_to_python(cancelled: bool) -> None:
    model = Model()
    model.compiled.submit(SHARED, print)
    (pending,) = model.submitted
    pending.cancelled = cancelled
    model.calls.clear()
    response = InferResponse("m", "3", (FITTING,) if cancelled else ())
    model.compiled.deliver(pending, response)
    tried = [] if cancelled else [("write", (pending.infer, response))]
    assert model.calls == [*tried, ("deliver", (pending, response))] and model.in_flight == {pending}


def test_a_refusal_is_told_and_raised() -> None:
    model = Model()
    model.refuses = True
    with pytest.raises(InferError) as raised:
        model.compiled.submit(PLAIN, print)
    ((name, (arrival_ns, error)),) = model.calls
    assert name == "refused" and error is raised.value and error.reason is FailureReason.REJECTED
    assert arrival_ns > 0 and not model.in_flight


def test_a_plain_response_is_counted_and_sent_in_the_name_of_the_model() -> None:
    model = Model()
    model.compiled.submit(PLAIN, model.recorded("sink"))
    (pending,) = model.submitted
    pending.dispatch_ns = pending.arrival_ns + 5
    response = InferResponse("other", "9", (FITTING,), "other", {"a": 1})
    model.compiled.deliver(pending, response)
    model.compiled.deliver(pending, response)
    (record, (total_ns, queue_ns)), sent = model.calls
    assert (record, queue_ns) == ("record", 5) and total_ns >= 0
    assert sent == ("sink", (InferResponse("m", "3", (FITTING,), "id", {"a": 1}),))
    assert not model.in_flight


def test_responses_of_an_execution_are_sent_at_once() -> None:
    model = Model()
    for _ in range(4):
        model.compiled.submit(PLAIN, model.recorded("sink"))
    plain, traced, answered, broken = model.submitted
    traced.infer, answered.answered = msgspec.structs.replace(PLAIN, trace="-"), True
    broken.sink = cast(Any, lambda _: 1 / 0)
    queue = ResponseQueue(cast(Any, None), print)
    queue.held, queue.deliver_now = True, model.compiled.deliver_all
    for pending in model.submitted:
        pending._responses = cast(Any, SimpleNamespace(put=model.recorded("put")))
    with raised_unraisable() as unraisable:
        queue.deliver_all([broken, plain, traced], [InferResponse(outputs=(FITTING,))] * 3)
    assert [name for name, _ in model.calls] == ["record", "record", "sink", "put"]
    assert (plain.answered, traced.answered, broken.answered) == (True, True, True)
    assert isinstance(unraisable[0], ZeroDivisionError) and model.in_flight == {traced, answered}
    with pytest.raises(RuntimeError, match="Unable to send response"):
        queue.deliver_all([answered], [InferResponse(outputs=(FITTING,))])
    with pytest.raises(TypeError):
        model.compiled.deliver_all(1, [])  # type: ignore[arg-type]


@contextmanager
def raised_unraisable() -> Iterator[list[BaseException | None]]:
    found: list[BaseException | None] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda raised: found.append(raised.exc_value)
    try:
        yield found
    finally:
        sys.unraisablehook = hook


def test_few_durations_are_appended_and_many_recorded() -> None:
    durations: list[int] = []
    model = Model(durations)
    for _ in range(3):
        model.compiled.submit(PLAIN, print)
        pending = model.submitted[-1]
        pending.dispatch_ns = pending.arrival_ns + 5
        model.compiled.deliver(pending, InferResponse(outputs=(FITTING,)))
    assert durations[1::2] == [5, 5] and min(durations[::2]) >= 0
    ((record, (_, queue_ns)),) = model.calls
    assert (record, queue_ns) == ("record", 5), "the third one would make them many"


@pytest.mark.parametrize(
    ("request_change", "response"),
    [
        ({}, InferResponse(final=False)),
        ({}, failed(ValueError())),
        ({"trace": "-"}, InferResponse()),
    ],
)
def test_other_responses_are_left_to_python(request_change: dict[str, Any], response: InferResponse) -> None:
    model = Model()
    model.compiled.submit(msgspec.structs.replace(PLAIN, **request_change), print)
    (pending,) = model.submitted
    model.compiled.deliver(pending, response)
    assert model.calls == [("deliver", (pending, response))] and model.in_flight == {pending}


def test_requests_leave_nothing_behind() -> None:
    model = Model()

    def run() -> None:
        for refuses in (False, True):
            model.refuses = refuses
            with suppress(InferError):
                model.compiled.submit(PLAIN, print)
        model.compiled.submit(msgspec.structs.replace(PLAIN, inputs=()), print)
        pending = model.submitted.pop()
        model.compiled.deliver(pending, failed(ValueError()))
        pending.sink = model.recorded("sink")
        model.compiled.deliver(pending, InferResponse("m", "1", (FITTING,)))
        model.refuses = False
        model.compiled.submit(SHARED, print)
        pending = model.submitted.pop()
        pending.sink = model.recorded("sink")
        model.compiled.deliver(pending, InferResponse("m", "1"))
        model.compiled.deliver(pending, InferResponse("m", "1", (FITTING,)))
        lost = msgspec.structs.replace(SHARED, inputs=(Tensor("A", "FP32", (2, 1), GONE),))
        model.compiled.submit(lost, print)
        model.calls.clear()

    def growth() -> int:
        gc.collect()
        blocks = sys.getallocatedblocks()
        for _ in range(200):
            run()
        gc.collect()
        return sys.getallocatedblocks() - blocks

    for _ in range(3):
        run()
    gc.collect()
    references = sys.getrefcount(QueuedRequest)
    # The process's: threads of other tests allocate too, but a leak is there every time.
    assert min(growth() for _ in range(3)) < 100
    assert sys.getrefcount(QueuedRequest) == references


def test_arguments_are_checked() -> None:
    from app.native.extension import PlainCheck, PlainRequests

    with pytest.raises(TypeError):
        PlainCheck(messages, 1, (("A",),), frozenset())  # type: ignore[arg-type]
    with pytest.raises((TypeError, OverflowError)):
        PlainCheck(messages, 1, (("A", "FP32", 4, (2**70,), False),), frozenset())
    parts: dict[str, Any] = dict.fromkeys(
        ("submit", "deliver", "cancel", "refused", "record", "read", "write", "scheduler", "responses"), print
    )
    with pytest.raises(TypeError):
        PlainRequests(messages, CHECKS[0][1], int, "m", "1", **parts, in_flight=set(), durations=None, many=2)
    compiled = Model().compiled
    for call in (compiled.submit, compiled.deliver, CHECKS[0][1].rows):
        with pytest.raises(TypeError):
            call(1)  # type: ignore
