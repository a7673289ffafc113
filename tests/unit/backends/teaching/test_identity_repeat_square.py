"""Triton's teaching backends: identity, repeat and square."""

import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from app.core.datatypes import DATATYPES
from app.core.errors import InferError
from app.core.tensors import UNNAMED_TRACE, Tensor
from backends.base import Instance, Request
from backends.teaching.identity import RESPONSE_PARAMETERS, IdentityBackend
from backends.teaching.repeat import RepeatBackend
from backends.teaching.square import SquareBackend
from backends.teaching.timeline import Timeline
from tests.unit.backend_harness import Served, config, infer

REPEAT = """
    name: "repeat_int32" backend: "repeat" model_transaction_policy { decoupled: true }
    input { name: "IN" data_type: TYPE_INT32 dims: -1 }
    input { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }
    input { name: "WAIT" data_type: TYPE_UINT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 } output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }
"""
SQUARE = """
    name: "square_int32" backend: "square" model_transaction_policy { decoupled: true }
    input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""


def pair(kind: str = "TYPE_FP32", dims: str = "dims: -1", output: str = "", extra: str = "") -> str:
    return f"""
        name: "i" backend: "identity" max_batch_size: 8
        input {{ name: "INPUT0" data_type: {kind} {dims} }}
        output {{ name: "OUTPUT0" data_type: {kind} {output or dims} }} {extra}
    """


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize("kind", DATATYPES)
def test_identity_of_every_type(kind: str) -> None:
    served = Served(IdentityBackend, config(pair(DATATYPES[kind].config_name)))
    values: Any = [[b"a", b""]] if kind == "BYTES" else [[1, 0]]
    array = np.array(values, dtype=DATATYPES[kind].dtype)
    calls = served(*(infer({"INPUT0": Tensor.from_array("INPUT0", array, kind)}) for _ in range(2)))
    for call in calls:
        assert np.array_equal(call.arrays["OUTPUT0"], array)
        assert call.responses[0].outputs[0].datatype == kind
        assert call.responses[0].parameters == RESPONSE_PARAMETERS


def test_identity_reshapes_and_returns_what_is_asked() -> None:
    dims = "dims: [2, 2] reshape { shape: 4 }"
    served = Served(IdentityBackend, config(pair(dims=dims, output="dims: 4")))
    (call,) = served(infer({"INPUT0": np.ones((1, 2, 2), np.float32)}))
    assert call.arrays["OUTPUT0"].shape == (1, 4)


def test_identity_of_optional_inputs() -> None:
    extra = """
        input { name: "INPUT1" data_type: TYPE_FP32 dims: -1 optional: true }
        output { name: "OUTPUT1" data_type: TYPE_FP32 dims: -1 }
    """
    served = Served(IdentityBackend, config(pair(extra=extra)))
    array = np.ones((1, 2), np.float32)
    both, first, asked = served(
        infer({"INPUT0": array, "INPUT1": array}),
        infer({"INPUT0": array}),
        infer({"INPUT0": array, "INPUT1": array}, ["OUTPUT1"]),
    )
    assert [list(call.arrays) for call in (both, first, asked)] == [
        ["OUTPUT0", "OUTPUT1"],
        ["OUTPUT0", "OUTPUT1"],
        ["OUTPUT1"],
    ]
    assert first.arrays["OUTPUT1"].tolist() == [[0.0]]
    (only,) = served(infer({"INPUT0": array}, ["OUTPUT0"]))
    assert list(only.arrays) == ["OUTPUT0"]


@pytest.mark.parametrize(("kind", "zero"), [("TYPE_STRING", b""), ("TYPE_INT16", 0), ("TYPE_BOOL", False)])
def test_identity_of_a_missing_input_is_zero(kind: str, zero: Any) -> None:
    reshape = "dims: [ 2, -1 ] reshape { shape: [ -1, 2 ] }"
    extra = f"""
        input {{ name: "INPUT1" data_type: {kind} {reshape} optional: true }}
        output {{ name: "OUTPUT1" data_type: {kind} dims: [ -1, 2 ] }}
    """
    served = Served(IdentityBackend, config(pair(extra=extra)))
    (call,) = served(infer({"INPUT0": np.ones((3, 2), np.float32)}))
    assert call.arrays["OUTPUT1"].tolist() == [[[zero, zero]]] * 3
    assert count_of(served) == 24


def count_of(served: Served) -> float:
    """The value of the counter, the only metric."""
    ((name, _, kind, [[labels, value, *_]]),) = served.backend.metrics()
    assert (name, kind, labels) == ("input_byte_size_counter", "counter", {"model": "i", "version": "1"})
    return float(value)


def test_identity_counts_the_bytes_it_copies() -> None:
    extra = """
        input { name: "INPUT1" data_type: TYPE_STRING dims: -1 }
        output { name: "OUTPUT1" data_type: TYPE_STRING dims: -1 }
    """
    served = Served(IdentityBackend, config(pair(extra=extra)))
    assert count_of(served) == 0
    arrays = {"INPUT0": np.ones((1, 2), np.float32), "INPUT1": np.array([[b"abc"]], object)}
    served(infer(arrays), infer(arrays, ["OUTPUT1"]))
    assert count_of(served) == 8 + 7 + 7
    served.close()
    assert served.backend.metrics() == []


class Reported(list[str]):
    """Takes the place of `Request.report_activity`."""

    def __call__(self, request: Request, name: str) -> None:
        self.append(name)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    made = Reported()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(Request, "report_activity", lambda request, name: made(request, name))
    return made


CUSTOM = parameter("enable_custom_tracing", "true")


def test_identity_reports_activities_of_traced_requests(reported: Reported) -> None:
    request = infer({"INPUT0": np.ones((1, 1), np.float32)})
    traced = msgspec.structs.replace(request, trace=UNNAMED_TRACE)
    Served(IdentityBackend, config(pair()))(traced)
    served = Served(IdentityBackend, config(pair(extra=CUSTOM)))
    served(request)
    assert reported == []
    served(request, traced)
    assert reported == ["CUSTOM_ACTIVITY_START", "CUSTOM_ACTIVITY_END", "CUSTOM_SINGLE_ACTIVITY"]


def test_identity_reports_nested_spans(reported: Reported) -> None:
    extra = CUSTOM + parameter("nested_span_count", "3") + parameter("single_activity_frequency", "2")
    served = Served(IdentityBackend, config(pair(extra=extra)))
    served(infer({"INPUT0": np.ones((1, 1), np.float32)}, trace=UNNAMED_TRACE))
    assert [name.removeprefix("CUSTOM_") for name in reported[3:]] == [
        "ACTIVITY0_START", "SINGLE_ACTIVITY", "ACTIVITY1_START", "ACTIVITY2_START", "SINGLE_ACTIVITY",
        "ACTIVITY2_END", "ACTIVITY1_END", "ACTIVITY0_END",
    ]  # fmt: skip


def test_identity_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    extra = parameter("execute_delay_ms", "30") + parameter("creation_delay_sec", "7")
    extra += parameter("instance_wise_delay_multiplier", "2")
    served = Served(IdentityBackend, config(pair(extra=extra)))
    request = infer({"INPUT0": np.ones((1, 1), np.float32)})
    served(request)
    served.instance = Instance(served.model, "i_0_3", index=3)
    served(request)
    assert slept == [7, 0.03, 0.18]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (pair().split("output")[0], "model configuration must have equal input/output pairs"),
        (
            pair().replace('"INPUT0"', '"IN"'),
            "expected input name to follow INPUT<index> pattern, got 'IN'",
        ),
        (
            pair().replace('"OUTPUT0"', '"OUT"'),
            "expected output name to follow OUTPUT<index> pattern, got 'OUT'",
        ),
        (pair().replace('"OUTPUT0"', '"OUTPUT1"'), "expected input and output indices to match"),
        (
            pair().replace("TYPE_FP32", "TYPE_INT8", 1),
            "expected input and output datatype to match, got TYPE_INT8 and TYPE_FP32",
        ),
        (pair(output="dims: 3"), "expected input and output shape to match, got [-1] and [3]"),
        (pair(extra=parameter("enable_custom_tracing", "yes")), "failed to convert 'yes' to boolean"),
        (pair(extra=parameter("execute_delay_ms", "soon")), "failed to convert 'soon' to integral number"),
    ],
)
def test_identity_refuses_other_configurations(text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        Served(IdentityBackend, config(text))
    assert message in caught.value.message


def repeat(values: list[int], delays: list[int], wait: int = 0) -> Any:
    return infer(
        {
            "IN": np.array(values, np.int32),
            "DELAY": np.array(delays, np.uint32),
            "WAIT": np.array([wait], np.uint32),
        }
    )


def values_of(call: Any, name: str) -> list[int]:
    return [
        int(tensor.array()[0])
        for response in call.wait()
        for tensor in response.outputs
        if tensor.name == name
    ]


def test_repeat_sends_each_element_and_an_empty_final_response() -> None:
    served = Served(RepeatBackend, config(REPEAT))
    (call,) = served(repeat([4, 5, 6], [0, 1, 0]))
    assert (values_of(call, "OUT"), values_of(call, "IDX")) == ([4, 5, 6], [0, 1, 2])
    assert [response.final for response in call.responses] == [False, False, False, True]
    assert call.responses[-1].outputs == ()
    served.close()


def test_repeat_of_nothing_and_of_wrong_sizes() -> None:
    served = Served(RepeatBackend, config(REPEAT))
    nothing, wrong = served(repeat([], []), repeat([1], [0, 0]))
    assert [response.outputs for response in nothing.wait()] == [()]
    assert wrong.error == "expected IN and DELAY shape to match, got [1] and [2]"
    served.close()


def test_repeat_interleaves_requests_and_stops_when_cancelled() -> None:
    served = Served(RepeatBackend, config(REPEAT))
    slow, quick = served(repeat([1, 2], [0, 60_000]), repeat([3], [0]))
    assert values_of(quick, "OUT") == [3]
    assert not slow.finished.is_set()
    slow.cancelled = True
    served.close()  # calls what still waits
    assert values_of(slow, "OUT") == [1]


def test_square_sends_n_responses() -> None:
    served = Served(SquareBackend, config(SQUARE))
    calls = served(*(infer({"IN": np.array([n], np.int32)}) for n in (3, 0, 2)))
    assert [values_of(call, "OUT") for call in calls] == [[3, 3, 3], [], [2, 2]]
    assert all(call.responses[-1].final and not call.responses[-1].outputs for call in calls)
    served.close()


def test_square_requires_a_decoupled_model() -> None:
    with pytest.raises(InferError, match="decoupled transaction policy"):
        Served(SquareBackend, config(SQUARE.replace("decoupled: true", "")))


def test_repeat_without_decoupling_returns_one_response() -> None:
    served = Served(RepeatBackend, config(REPEAT.replace("decoupled: true", "")))
    one, two = served(repeat([4], [50]), repeat([5, 6], [0, 0]))
    assert not one.answered and not one.unanswered
    for call, value in ((one, 4), (two, 5)):
        assert values_of(call, "OUT") == [value]
        assert [response.final for response in call.responses] == [True]
    served.close()


def test_timeline_calls_in_order_and_survives_a_failing_action() -> None:
    called: list[str] = []
    done = threading.Event()
    timeline = Timeline("test")
    now = time.monotonic()
    timeline.at(now + 3600, lambda: called.append("later"))
    timeline.at(now, lambda: called.append("b"))
    timeline.at(now - 1, lambda: called.append("a"))
    timeline.at(now, lambda: 1 // 0)  # type: ignore[arg-type]
    timeline.at(now, done.set)
    assert done.wait(60)
    assert sorted(called) == ["a", "b"]
    timeline.close()
    assert called[-1] == "later"
