"""A backend written in C against Triton's API (probe/probe.c), loaded and executed."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from backends.base import Instance, Model, Request
from backends.registry.configuration import normalise
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Call, Served, config, infer
from tests.waiting import block_until

TENSORS = """
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
BATCHED = f'name: "m" backend: "probe" max_batch_size: 8 {TENSORS}'
DECOUPLED = f"{BATCHED} model_transaction_policy {{ decoupled: true }}"


def served(libraries: Path, text: str, directory: Path = Path("nowhere"), **instance: Any) -> Served:
    return Served(find_backend(BackendPlace("probe", libraries)), config(text), directory, **instance)


@pytest.fixture(scope="module")
def probe(libraries: Path) -> Iterator[Served]:
    loaded = served(libraries, BATCHED)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def decoupled(libraries: Path) -> Iterator[Served]:
    loaded = served(libraries, DECOUPLED)
    yield loaded
    loaded.close()


def row(*values: float) -> np.ndarray[Any, Any]:
    return np.array([values], np.float32)


def ask(mode: str, *values: float, **fields: Any) -> InferRequest:
    return infer({"IN": row(*values or (1,))}, parameters={"mode": mode}, **fields)


def failure(call: Call) -> tuple[ErrorCode, str]:
    (response,) = call.wait()
    assert response.failure is not None
    return response.failure.code, response.failure.message


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("", [("m", 3)]),
        ("instance_group { }", [("m_0", 3)]),
        ("instance_group { kind: KIND_CPU }", [("m_0", 3)]),
        ("instance_group { kind: KIND_CPU count: 2 }", [("m_0", 2)]),
        ("instance_group { kind: KIND_CPU count: 1 }", [("m_0", 1)]),
        ("instance_group { kind: KIND_MODEL }", [("m_0", 1)]),
        ("instance_group { count: 1 } instance_group { }", [("m_0", 1), ("m_1", 3)]),
    ],
)
def test_preferred_groups_complete_those_of_a_model(
    libraries: Path, declared: str, expected: list[tuple[str, int]]
) -> None:
    """The probe prefers a group on a GPU, which is not here, and then one of three instances."""
    preferred = find_backend(BackendPlace("probe", libraries)).preferred_groups({}, True)
    groups = normalise(config(f"{BATCHED} {declared}"), (), preferred).instance_group
    assert [(group.name, group.count) for group in groups] == expected
    on_gpu = 'name: "m" kind: KIND_GPU count: 1 gpus: 0'
    assert normalise(config(BATCHED), (0, 1), preferred).instance_group == [
        text_format.Parse(on_gpu, mc.ModelInstanceGroup())
    ]


def test_every_request_of_a_batch_is_answered(probe: Served) -> None:
    calls = probe(*(infer({"IN": row(i, i + 1)}) for i in range(3)))

    for i, call in enumerate(calls):
        assert call.arrays["OUT"].tolist() == [[2 * i, 2 * i + 2]]
        assert not call.detached


@pytest.mark.parametrize("size", [1023, 1024, 1 << 18])  # around what is copied into a message, and beyond
def test_tensors_of_any_size_are_passed(probe: Served, size: int) -> None:
    for _ in range(3):  # the first finds no memory prepared for its output
        values = np.random.default_rng(0).random((1, size), np.float32)
        (call,) = probe(infer({"IN": values}))
        assert (call.arrays["OUT"] == 2 * values).all()


def test_outputs_of_one_execution_are_not_overwritten_by_the_next(probe: Served) -> None:
    first, second = (probe(infer({"IN": np.full((1, 5000), i, np.float32)}))[0] for i in (1, 2))

    assert (first.arrays["OUT"] == 2).all()
    assert (second.arrays["OUT"] == 4).all()


def test_backend_reads_what_a_request_has(probe: Served) -> None:
    fields: dict[str, Any] = {"id": "r7", "sequence_id": 1 << 63, "sequence_start": True, "timeout_us": 300}
    request = infer({"IN": row(1)}, parameters={"mode": "describe", "n": 3, "x": 0.5, "b": True}, **fields)

    (call,) = probe(request)

    (response,) = call.wait()
    assert response.parameters == {
        "request": f"r7 {1 << 63} 300 1 4 1",
        "int": -5,
        "bool": True,
        "double": 0.5,
    }


def test_text_is_no_number_of_a_sequence(probe: Served) -> None:
    (call,) = probe(ask("describe", id="r", sequence_id="text"))

    text = "[request id: r] correlation ID in request is not an unsigned int"
    assert failure(call) == (ErrorCode.INVALID_ARG, text)


def test_failed_request_harms_no_other(probe: Served) -> None:
    good, bad = probe(ask(""), ask("fail"))

    assert good.arrays["OUT"].tolist() == [[2]]
    assert failure(bad) == (ErrorCode.INVALID_ARG, "probe was asked to fail")


def test_text_that_is_no_utf8_is_made_readable(probe: Served) -> None:
    odd, good = probe(ask("odd text"), ask(""))

    assert failure(odd) == (ErrorCode.INTERNAL, "café ? ??? 😀 ??")
    assert good.arrays["OUT"].tolist() == [[2]]


def test_refused_batch_raises_the_backends_error(probe: Served) -> None:
    with pytest.raises(InferError, match="probe refuses this batch") as raised:
        probe(ask("refuse"), ask(""))

    assert raised.value.code is ErrorCode.UNAVAILABLE


def test_unanswered_request_is_left_to_the_server(probe: Served) -> None:
    (call,) = probe(ask("drop"))

    assert call.unanswered


def test_response_may_come_after_the_execution(probe: Served) -> None:
    late, early = probe(ask("late", 3), ask("", 4))

    assert late.detached
    assert early.answered
    assert late.arrays["OUT"].tolist() == [[6]]


def test_large_late_response_arrives(probe: Served) -> None:
    (call,) = probe(infer({"IN": np.ones((1, 5000), np.float32)}, parameters={"mode": "late"}))

    assert call.arrays["OUT"].sum() == 10000


def test_late_request_without_response_fails(probe: Served) -> None:
    (call,) = probe(ask("drop late"))

    assert failure(call) == (ErrorCode.INTERNAL, "model 'm' released this request without a final response")


def test_cancellation_reaches_a_thread_of_the_backend(probe: Served) -> None:
    call, other = probe(ask("cancel"), ask("cancel"))
    call.cancelled = True

    assert failure(call) == (ErrorCode.CANCELLED, "probe was cancelled")
    assert not other.answered
    other.cancelled = True
    other.wait()


def test_decoupled_responses_arrive_in_order(decoupled: Served) -> None:
    (call,) = decoupled(ask("stream", 500))

    *streamed, last = call.wait()
    assert [response.outputs[0].array()[0, 0] for response in streamed] == [2 * i for i in range(500)]
    assert last.is_end_of_stream


def test_state_of_a_sequence_is_part_of_the_response(libraries: Path) -> None:
    state = """state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] }"""
    model = served(libraries, f"{BATCHED} sequence_batching {{ {state} }}")

    (call,) = model(infer({"IN": row(3), "STATE_IN": row(4)}, parameters={"mode": "state"}))

    assert {name: array.item() for name, array in call.arrays.items()} == {"OUT": 14, "STATE_OUT": 7}
    assert call.responses[0].parameters["shared"] == 0
    model.close()


def test_state_may_have_one_buffer_for_input_and_output(libraries: Path) -> None:
    """It stays where it is until its sequence ends."""
    names = 'input_name: "STATE_IN" output_name: "STATE_OUT"'
    state = f"state {{ {names} data_type: TYPE_FP32 dims: [ 1 ] use_same_buffer_for_input_output: true }}"
    model = served(libraries, f"{BATCHED} sequence_batching {{ {state} }}")

    def step(sequence: int | str, before: float) -> tuple[float, int]:
        request = infer(
            {"IN": row(1), "STATE_IN": row(before)}, parameters={"mode": "state"}, sequence_id=sequence
        )
        (call,) = model(request)
        return call.arrays["STATE_OUT"].item(), int(call.responses[0].parameters["shared"])

    assert step(5, 7)[0] == 8
    buffers = [step(5, 8), step("5", 3), step(5, 9)]
    assert [value for value, _ in buffers] == [9, 4, 10]
    assert buffers[0][1] == buffers[2][1] != buffers[1][1]
    assert all(address for _, address in buffers)
    for sequence in (5, "5", 6):
        model.backend.sequence_finalize(model.instance, sequence)
    assert step(5, 1)[0] == 2
    model.close()


def test_state_that_is_not_configured_is_refused(probe: Served) -> None:
    (call,) = probe(infer({"IN": row(3), "STATE_IN": row(4)}, parameters={"mode": "state"}))

    text = "unable to add state 'STATE_OUT'. State configuration is missing for model 'm'."
    assert failure(call) == (ErrorCode.INVALID_ARG, text)


def test_reshaped_tensors_have_the_models_shape_inside_and_the_clients_outside(libraries: Path) -> None:
    text = BATCHED.replace("dims: [ -1 ]", "dims: [ 2, 2 ] reshape { shape: [ 4 ] }")
    model = served(libraries, text)

    (call,) = model(infer({"IN": np.ones((1, 2, 2), np.float32)}))

    assert call.arrays["OUT"].tolist() == [[[2, 2], [2, 2]]]
    model.close()


def test_function_that_is_not_there_says_so(probe: Served) -> None:
    (call,) = probe(ask("server"))

    text = "TRITONSERVER_ServerMetrics is not supported for backends of this server"
    assert failure(call) == (ErrorCode.UNSUPPORTED, text)


def test_times_of_computing_are_the_backends(probe: Served) -> None:
    probe(ask(""))

    assert (probe.instance.compute_start_ns, probe.instance.compute_end_ns) == (2000, 3000)


def test_activities_of_a_trace_are_reported(probe: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(Request, "report_activity", lambda _, name, time_ns=0: made.append((name, time_ns)))

    probe(ask(""), ask("", trace="-"))

    assert made == [("PROBED", 12345)]


def test_log_lines_keep_their_place(probe: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        probe(ask(""))
        block_until(lambda: "probe executes (probe.c:7)" in caplog.messages)
    caplog.clear()

    with caplog.at_level(logging.WARNING):
        probe(ask(""))
    assert not caplog.messages


def test_custom_metrics_are_those_of_python_models(libraries: Path) -> None:
    model = served(libraries, BATCHED)
    model(ask(""), ask("", 1, 2, 3))

    requests, sizes = model.backend.metrics()

    label = {"color": "green"}
    assert requests[:3] == ["probe_requests", "Requests of the probe", "counter"]
    assert requests[3][0][0] == label
    assert requests[3][0][1] >= 2  # those of other models of this process too
    assert sizes[3][0][3] == [1.0, 10.0]
    assert sum(sizes[3][0][4]) == requests[3][0][1]
    model.close()


def test_completed_configuration_is_the_backends(libraries: Path) -> None:
    kind = find_backend(BackendPlace("probe", libraries))
    model = Model(config('name: "m" backend: "probe"'), 1, Path("nowhere"))

    model.config = kind.auto_complete(model)

    assert model.config.max_batch_size == 4
    assert [tensor.name for tensor in model.config.input] == ["IN"]
    loaded = Served(kind, model)
    (call,) = loaded(ask("", 5))
    assert call.arrays["OUT"].tolist() == [[10]]
    loaded.close()


def test_complete_configuration_stays(libraries: Path) -> None:
    declared = config(BATCHED)
    model = Model(declared, 1, Path("nowhere"))

    completed = find_backend(BackendPlace("probe", libraries)).auto_complete(model)

    assert completed == declared
    model.state.close()


def test_scheduler_of_a_configuration_stays(libraries: Path) -> None:
    model = Model(config('name: "m" backend: "probe" dynamic_batching { }'), 1, Path("nowhere"))

    with pytest.raises(InferError, match="Cannot update scheduling choice from dynamic_batching to None"):
        find_backend(BackendPlace("probe", libraries)).auto_complete(model)
    assert model.state is None


def test_refused_model_raises_the_backends_error(libraries: Path) -> None:
    text = f'{BATCHED} parameters {{ key: "refuse_model" value {{ string_value: "yes" }} }}'

    with pytest.raises(InferError, match="probe refuses this model") as raised:
        served(libraries, text)

    assert raised.value.code is ErrorCode.INVALID_ARG


def test_instance_is_as_ready_as_its_backend_says(libraries: Path) -> None:
    model = served(libraries, BATCHED)
    tired = Instance(model.model, "tired_0")
    model.backend.instance_initialize(tired)

    assert model.backend.readiness_varies(tired)
    assert model.backend.instance_ready(model.instance)
    assert not model.backend.instance_ready(tired)
    model.backend.instance_finalize(tired)
    model.close()


def test_instances_execute_at_the_same_time(libraries: Path) -> None:
    model = served(libraries, BATCHED)
    other = Instance(model.model, "m_0_1")
    model.backend.instance_initialize(other)
    calls = [Call(ask("meet")), Call(ask("meet"))]

    thread = threading.Thread(target=model.backend.instance_execute, args=(other, calls[:1]))
    thread.start()
    model.backend.instance_execute(model.instance, calls[1:])
    thread.join()

    assert [call.arrays["OUT"].tolist() for call in calls] == [[[2]], [[2]]]
    model.backend.instance_finalize(other)
    model.close()


def test_library_without_execute_is_no_backend(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "libtriton_empty.so").write_bytes((libraries / "strategy.so").read_bytes())

    with pytest.raises(InferError, match="required entrypoint 'TRITONBACKEND_ModelInstanceExecute'"):
        Served(find_backend(BackendPlace("empty", tmp_path)), mc.ModelConfig(name="m"))


def test_file_that_is_no_library_says_so(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "libtriton_odd.so").write_text("not a library")

    with pytest.raises(InferError, match=r"unable to load shared library: .*libtriton_odd\.so") as raised:
        Served(find_backend(BackendPlace("odd", tmp_path)), mc.ModelConfig(name="m"))

    assert raised.value.code is ErrorCode.NOT_FOUND
