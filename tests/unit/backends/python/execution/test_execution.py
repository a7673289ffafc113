"""How Python models answer: by senders, later, asynchronously, and never with another request's data."""

import gc
import itertools
import sys
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from app.core import buffers
from app.core.tensors import Tensor
from backends.python.api import pb_utils
from backends.python.api.tensor import received_tensor
from backends.python.execution.execution import Execution, described
from tests.unit.backend_harness import Call, infer
from tests.unit.python_models import (
    DECOUPLED,
    FINAL,
    IDENTITY,
    Load,
    execute,
    failure,
    row,
    text,
)


def test_exception_of_a_model_is_logged_in_one_line(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    served = load(execute("raise ValueError('no such label')"))
    with caplog.at_level("INFO", logger="backends"):
        failure(served)
    (record,) = (record for record in caplog.records if "failed" in record.message)
    assert record.exc_info is None
    name, _, frames = record.message.partition("ValueError: no such label\n\nAt:\n")
    assert name.startswith("execute of instance 'm")
    assert "1/model.py(9): execute" in frames and "backends/python" not in frames


def test_rescheduled_requests_are_left_to_the_scheduler(load: Load) -> None:
    source = execute(
        "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [None]"
    )
    for configuration in (text(), DECOUPLED):
        body = source.replace("[None]", "None") if configuration is DECOUPLED else source
        (call,) = load(body, configuration)(row(1))
        gc.collect()
        assert (call.rescheduled, call.unanswered, call.responses) == (True, False, [])


def test_decoupled_responses_from_a_thread(load: Load) -> None:
    served = load(
        execute(f"""
def answer(request, sender):
    for value in request.inputs()[0].as_numpy()[0]:
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([value]))]))
    sender.send({FINAL})
for request in requests:
    threading.Thread(target=answer, args=(request, request.get_response_sender())).start()
"""),
        DECOUPLED,
    )
    for call, expected in zip(served(row(1, 2), row()), ([1, 2], []), strict=True):
        *responses, last = call.wait()
        assert [response.outputs[0].array()[0] for response in responses] == expected
        assert [response.final for response in responses] == [False] * len(responses)
        assert last.final and not last.outputs


@pytest.mark.parametrize("body", ["pass", "sender = requests[0].get_response_sender()"])
def test_decoupled_request_that_the_model_drops_ends(body: str, load: Load) -> None:
    (call,) = load(execute(body), DECOUPLED)(row(1))
    gc.collect()
    (response,) = call.wait()
    assert response.final and response.failure is None


def test_decoupled_model_must_return_none(load: Load) -> None:
    assert failure(load(IDENTITY, DECOUPLED)) == (
        "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."
    )


SENDS = """
sender = requests[0].get_response_sender()
answer = pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones(1))])
errors = []
for response, flags in STEPS:
    try:
        sender.send(answer if response else None, flags)
    except pb_utils.TritonModelException as error:
        errors.append(str(error))
assert errors == EXPECTED, errors
"""
CLOSED = "Unable to send response. Response sender has been closed."
ONCE = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


@pytest.mark.parametrize(
    ("configuration", "steps", "errors"),
    [
        (DECOUPLED, [(1, 0), (1, 1), (1, 0), (0, 1)], [CLOSED, CLOSED]),
        (DECOUPLED, [(0, 1), (1, 1)], [CLOSED]),
        (
            DECOUPLED,
            [(0, 0), (1, 2), (1, 1)],
            [
                "Inference Response object must be provided when the response flags is set to zero.",
                "Unable to send response. Unsupported flag provided.",
            ],
        ),
        (text(), [(1, 1), (1, 1)], [ONCE]),
        (text(), [(1, 0), (1, 0), (0, 1), (0, 1)], [ONCE, CLOSED]),
        (text(), [(0, 1), (1, 1)], [EARLY]),
    ],
)
def test_rules_of_the_response_sender(configuration: str, steps: Any, errors: Any, load: Load) -> None:
    source = SENDS.replace("STEPS", repr(steps)).replace("EXPECTED", repr(errors))
    (call,) = load(execute(source), configuration)(row(1))
    responses = call.wait()
    assert [response.failure for response in responses] == [None] * len(responses)
    assert [response.final for response in responses] == [False] * (len(responses) - 1) + [True]


def test_sender_of_a_model_that_is_not_decoupled_may_answer_later(load: Load) -> None:
    source = execute("self.sender = requests[0].get_response_sender()")
    served = load(source)
    (call,) = served(row(1))
    assert call.detached and not call.unanswered and not call.answered
    model = served.instance.state.model
    model.sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones(1))]))
    assert call.arrays["O"].tolist() == [1]
    (dropped,) = served(row(1))
    del model.sender
    gc.collect()
    assert dropped.error == "the model dropped the response sender without sending a response"


@pytest.mark.parametrize("configuration", [text(), DECOUPLED])
def test_async_execute(configuration: str, load: Load) -> None:
    answer = 'pb_utils.InferenceResponse([pb_utils.Tensor("O", r.inputs()[0].as_numpy() + 1)])'
    body = f"return [{answer} for r in requests]"
    if configuration is DECOUPLED:
        body = f"for r in requests:\n            r.get_response_sender().send({answer}, {FINAL})"
    source = execute(f"await asyncio.sleep(0)\n{body.replace('            ', '    ')}").replace(
        "def exe", "async def exe"
    )
    calls = load(source, configuration)(row(1), row(2))
    assert [call.arrays["O"].tolist() for call in calls] == [[[2]], [[3]]]


@pytest.mark.parametrize("configuration", [text(), DECOUPLED])
def test_exception_in_async_execute(configuration: str, load: Load) -> None:
    source = execute("await asyncio.sleep(0)\nraise ValueError('boom')").replace("def exe", "async def exe")
    assert failure(load(source, configuration)).startswith("ValueError: boom\n\nAt:\n")


def test_models_may_change_their_inputs_but_not_the_request(load: Load) -> None:
    source = execute("""
array = requests[0].inputs()[0].as_numpy()
array += 1
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", array)])]
""")
    data = np.ones((1, 2), np.float32).tobytes()
    (call,) = load(source)(infer({"I": Tensor("I", "FP32", (1, 2), data)}))
    assert call.arrays["O"].tolist() == [[2, 2]]
    assert data == np.ones((1, 2), np.float32).tobytes()


def read_only(size: int) -> Tensor:
    return Tensor("I", "FP32", (1, size), np.arange(size, dtype=np.float32).tobytes())


@pytest.mark.parametrize("view", ["array", "array.reshape(2, -1)", "array[:, 2:]"])
def test_an_input_that_is_returned_is_copied_once(view: str, load: Load, monkeypatch: Any) -> None:
    made: list[memoryview] = []

    def make(nbytes: int) -> memoryview:
        made.append(buffers.allocate_private(nbytes))
        return made[-1]

    monkeypatch.setattr(buffers, "_allocate", make)
    source = execute(f"""
array = requests[0].inputs()[0].as_numpy()
array += 1
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", {view})])]
""")
    (call,) = load(source)(infer({"I": read_only(10_000)}))
    (memory,) = made
    output = call.arrays["O"]
    assert output.ravel()[-1] == 10_000
    assert np.shares_memory(output, np.frombuffer(memory, np.uint8))


@pytest.mark.parametrize(
    "keep",
    [
        "array",
        "array[0, :9]",
        "requests",
        "requests[0].inputs()[0]",
        "array.base",
        "array.base.base",
        "memoryview(array)",
    ],
)
@pytest.mark.parametrize("view", ["array", "array.reshape(-1, 1)"])
def test_an_input_that_the_model_has_kept_is_no_part_of_the_response(
    keep: str, view: str, load: Load
) -> None:
    source = execute(f"""
array = requests[0].inputs()[0].as_numpy()
if hasattr(self, "kept"):
    kept = self.kept
    if isinstance(kept, list):
        kept = kept[0].inputs()[0]
    np.asarray(kept.as_numpy() if hasattr(kept, "as_numpy") else kept)[:] = 77
self.kept = {keep}
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", {view})])]
""")
    served = load(source)
    (first,) = served(infer({"I": read_only(10_000)}))
    served(infer({"I": read_only(10_000)}))
    assert first.arrays["O"].ravel().tolist() == list(range(10_000))


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("view", ["self.kept", "self.kept.reshape(2, -1)", "self.kept[None][None]"])
def test_responses_do_not_change_when_the_model_executes_again(size: int, view: str, load: Load) -> None:
    source = execute(f"""
if not hasattr(self, "kept"):
    self.kept = np.zeros({size}, np.float32)
self.kept[:] = requests[0].inputs()[0].as_numpy()[0, 0]
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", {view})])]
""")
    served = load(source)
    (first,) = served(row(1))
    served(row(2))
    assert (first.arrays["O"] == 1).all()


def test_outputs_are_not_copied_in_a_process_that_sends_them_at_once(load: Load) -> None:
    source = execute("""
self.kept = np.zeros(100_000, np.float32)
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", self.kept.reshape(2, -1))])]
""")
    served = load(source)
    there = Execution(described(asdict(served.instance.state.instance)))
    for execution, copied in ((served.instance.state, True), (there, False)):
        call = Call(row(1))
        execution.execute([call], served.instance)
        assert np.shares_memory(call.arrays["O"], execution.model.kept) != copied
    there.close()


def test_strings_that_are_no_bytes_are_printed(load: Load) -> None:
    source = execute(
        'return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array(["é", 3, b"x"], dtype=object))])]'
    )
    (call,) = load(source)(row(1))
    assert call.arrays["O"].tolist() == ["é".encode(), b"3", b"x"]


def test_tensors_refuse_unicode_arrays_and_other_objects() -> None:
    others = [np.array(["a"]), np.array([1j]), np.array(["2020-01-01"], "datetime64[s]")]
    others += [np.zeros(2, ">f4"), np.zeros(2, ">i8"), np.zeros(2, np.longdouble), np.zeros(2, "f4,f4")]
    for array in others:
        with pytest.raises(pb_utils.TritonModelException, match=r"NumPy dtype is not supported\."):
            pb_utils.Tensor("O", array)
    masked = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])
    with pytest.raises(pb_utils.TritonModelException, match=r"masked array.*\.filled\(value\)"):
        pb_utils.Tensor("O", masked)
    with pytest.raises(TypeError):
        pb_utils.Tensor("O", [1, 2])  # type: ignore[arg-type]


def test_dlpack_of_numpy_arrays() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = pb_utils.Tensor.from_dlpack("T", array)
    assert tensor.name() == "T"
    assert np.shares_memory(tensor.as_numpy(), array)
    again = pb_utils.Tensor.from_dlpack("T", tensor.to_dlpack())
    assert again.as_numpy().tolist() == array.tolist()
    with pytest.raises(pb_utils.TritonModelException, match="not contiguous"):
        pb_utils.Tensor.from_dlpack("T", array.T)


def test_dlpack_of_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    source = torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)
    tensor = pb_utils.Tensor.from_dlpack("T", source)
    assert (tensor.triton_dtype(), tensor.shape(), tensor.is_cpu()) == (14, [1, 2], True)
    wire = tensor._to_wire()
    assert wire.datatype == "BF16"
    assert pb_utils.Tensor.from_dlpack("T", tensor.to_dlpack())._to_wire() == wire  # a bare capsule
    received = received_tensor(wire)
    assert torch.equal(torch.from_dlpack(received), source)
    floats = pb_utils.Tensor.from_dlpack("T", torch.ones(3))
    assert (floats.triton_dtype(), floats.as_numpy().tolist()) == (11, [1, 1, 1])


def test_models_do_not_see_the_arguments_of_the_process(load: Load) -> None:
    source = execute("return [pb_utils.InferenceResponse([pb_utils.Tensor('O', np.ones(1))])]")
    parses = "import argparse\nimport sys\nargparse.ArgumentParser().parse_args()\nassert sys.argv == ['']\n"
    (call,) = load(parses + source)(row(1))
    assert call.arrays["O"].tolist() == [1]


def test_model_goes_while_another_thread_imports(load: Load) -> None:
    """Another thread may run whenever objects are collected, which making a list of the modules begins."""
    served, numbers, threshold = load(IDENTITY), itertools.count(), gc.get_threshold()
    added: list[str] = []

    def importing(phase: str, information: dict[str, int]) -> None:
        added.append(f"imported_meanwhile_{next(numbers)}")
        sys.modules[added[-1]] = ModuleType(added[-1])

    gc.callbacks.append(importing)
    gc.set_threshold(1)
    try:
        served.close()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(importing)
        for name in added:
            del sys.modules[name]
    assert added
