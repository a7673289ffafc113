"""Python models in a process of their own environment: real processes, one for most of the tests."""

import json
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from backends.base import Model, Request
from backends.python.api import server_api
from backends.python.api.calls import Calls
from backends.python.api.errors import TritonModelException
from backends.python.backend import PythonBackend
from tests.unit.backend_harness import Call, Served, config, infer
from tests.unit.backends.python.worker.process_model import MODEL, SECONDS, ask, told
from tests.unit.python_models import DECOUPLED, execute, row, text, write
from tests.waiting import block_until


class Answering(Calls):
    """The rest of the server, for models that call others."""

    def __init__(self) -> None:
        super().__init__("m")
        self.asked: list[Any] = []

    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
        self.asked.append(infer)
        if infer.model_name == "nobody":
            sink(failed(unavailable("nobody is not ready")))
            return cancel_nothing
        y = Tensor.from_array("y", infer.inputs[0].array() * 2)
        if decoupled:
            sink(InferResponse(outputs=(y,), final=False))
            sink(InferResponse(outputs=(y,), final=False))
        sink(InferResponse(outputs=() if decoupled else (y,)))
        return cancel_nothing

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self.asked.append((name, config, dict(files)))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise TritonModelException(f"failed to unload '{name}'")

    def is_model_ready(self, name: str, version: str) -> bool:
        return not version


@pytest.fixture(scope="module")
def served(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write(tmp_path_factory.mktemp("model"), MODEL)
    made = Served(PythonBackend, config(text()), folder, interpreter=python)
    yield made
    made.close()
    assert (folder / "finalized").exists()


@pytest.mark.parametrize(
    "array",
    [
        np.ones((1, 2), np.float32),
        np.zeros((0, 2), np.float32),
        np.arange(1 << 18, dtype=np.int64).reshape(2, -1),
        np.array([[b"a\xff", b""]], dtype=object),
        np.array([[True, False]]),
    ],
    ids=lambda array: f"{array.dtype}-{array.size}",
)
def test_tensors_round_trip(array: Any, served: Served) -> None:
    call = ask(served, "identity", array)
    assert call.arrays["O"].tolist() == array.tolist()
    assert call.responses[0].parameters == {"did": "identity"}


def test_an_input_may_be_changed_in_place(served: Served) -> None:
    for size in (2, 100_000):
        array = np.zeros((1, size), np.float32)
        assert ask(served, "in_place", array).arrays["O"].sum() == size
        assert array.sum() == 0


def test_memory_of_inputs_is_free_when_they_are_answered(served: Served) -> None:
    """The reply says so; a request that is not followed by another one would else hold it."""
    told(ask(served, "about", np.zeros((1, 100_000), np.float32)))
    assert served.instance.state._process._jobs._sent.live == 0


def test_outputs_of_an_array_that_the_model_fills_again(python: Path, tmp_path: Path) -> None:
    source = execute("""
if not hasattr(self, "kept"):
    self.kept = np.zeros(100_000, np.float32)
self.kept[:] = requests[0].inputs()[0].as_numpy()[0, 0]
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", self.kept)])]
""")
    served = Served(PythonBackend, config(text()), write(tmp_path, source), interpreter=python)
    answers = [served(row(value))[0] for value in (1, 2)]
    assert [set(call.arrays["O"].tolist()) for call in answers] == [{1}, {2}]
    served.close()


def test_a_batch(served: Served) -> None:
    requests = [infer({"I": np.full((1, 2), n, np.float32)}, id=str(n)) for n in range(3)]
    calls = served(*requests)
    assert [call.arrays["O"][0, 0] for call in calls] == [0, 1, 2]
    assert [call.responses[0].id for call in calls] == ["0", "1", "2"]
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0


def test_model_receives_every_field_of_a_request(served: Served, python: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = ask(served, "about", id="9", sequence_id="s", sequence_start=True, timeout_us=5, trace=trace)
    root = str(python.parent.parent)
    assert told(call) == [
        root, root, "m_0_0", "1.model", "9", "s", 1, 5, ["O"], json.dumps({"traceparent": trace}),
        [1, 2], 11, str(served.model.version_directory), [],
    ]  # fmt: skip


def test_errors_of_the_model_are_reported(served: Served) -> None:
    prefix = "Failed to process the request(s) for model 'm_0_0', message: ValueError: no\n\nAt:\n  "
    assert ask(served, "fails").error.startswith(prefix + str(served.model.version_directory / "model.py"))
    refused = ask(served, "refuses").responses[0].failure
    assert refused is not None
    assert (refused.code, refused.message) == (ErrorCode.NOT_FOUND, "missing")
    text = "Expect parameters values to have type bool/int/str, found type <class 'object'>"
    assert text in ask(served, "odd").error


def test_is_cancelled(served: Served) -> None:
    for cancelled in (True, False):
        call = Call(infer({"I": np.ones((1, 2), np.float32)}, parameters={"do": "cancelled"}))
        call.cancelled = cancelled
        served.backend.instance_execute(served.instance, [call])
        assert told(call) == [cancelled]


def test_log_records_join_the_log_of_the_replica(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="backends"):
        ask(served, "logs")
        block_until(lambda: caplog.records, "the record")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage(), record.filename) == ("WARNING", "look here", "model.py")


def test_rescheduled_and_detached_requests(served: Served) -> None:
    call = ask(served, "reschedules")
    assert (call.rescheduled, call.unanswered, call.responses) == (True, False, [])
    call = ask(served, "later")
    assert call.detached
    assert call.arrays["O"].tolist() == [[b"later"]]


def test_calls_of_other_models(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Answering()
    monkeypatch.setattr(server_api._Installed, "api", rest)
    assert told(ask(served, "calls", trace="-")) == [0, 2, 4]
    assert (rest.asked[0].model_name, rest.asked[0].trace, rest.asked[0].chain) == ("m2", "-", ("m",))
    assert told(ask(served, "calls_twice")) == [1, 1]
    assert told(ask(served, "calls_many")) == [[[0, 2, 4]], [[0, 2, 4]], []]
    assert told(ask(served, "calls_nobody")) == ["nobody is not ready", 4]
    assert told(ask(served, "manages")) == ["failed to unload 'bad'", True, False]
    assert rest.asked[-1] == ("new", "{}", {"1/x": b"ab"})


def test_an_answer_does_not_live_until_the_next_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors may be memory that another replica lends."""
    answers: list[weakref.ref[Any]] = []

    class Watched(Answering):
        def send(self, infer: InferRequest, sink: Callable[[InferResponse], None], *rest: Any) -> Any:
            values = np.zeros(3)
            answers.append(weakref.ref(values))
            sink(InferResponse(outputs=(Tensor.from_array("y", values),)))
            return cancel_nothing

    monkeypatch.setattr(server_api._Installed, "api", Watched())
    assert told(ask(served, "calls")) == [0, 0, 0]
    block_until(lambda: answers[0]() is None, "the answer is still there", 5)


def test_custom_metrics(served: Served) -> None:
    (family,) = served.backend.metrics()
    assert family[:3] == ["served", "Requests", "counter"]
    ask(served, "logs")
    ((labels, value, *_),) = served.backend.metrics()[0][3]
    assert (labels, value) == ({"of": "m"}, family[3][0][1] + 1)


def test_kill_fails_the_requests_in_flight(served: Served) -> None:
    pid = served.instance.state.pid
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    text = "Stub process 'm_0_0' is not healthy. It ended with signal 9 (SIGKILL)."
    assert ask(served, "hangs").error.endswith(text)
    assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]


def test_is_ready_and_auto_complete(python: Path, tmp_path: Path) -> None:
    folder = write(tmp_path, MODEL)
    model = Model(config(text()), 1, folder)
    model.interpreter = python
    assert PythonBackend.auto_complete(model).max_batch_size == 64
    served = Served(PythonBackend, config(text()), folder, interpreter=python)
    assert served.backend.readiness_varies(served.instance)
    assert served.backend.instance_ready(served.instance)
    ask(served, "not_ready")
    assert not served.backend.instance_ready(served.instance)
    served.close()


def test_no_calls_in_initialize(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_api._Installed, "api", Answering())
    body = 'pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("I", np.ones(1))], [], "m2").exec()'
    source = (
        f"class TritonPythonModel:\n    def initialize(self, args):\n        {body}\n    execute = None\n"
    )
    with pytest.raises(InferError, match=r"'execute' function\. Model 'm2' was called in 'initialize'\."):
        Served(PythonBackend, config(text()), write(tmp_path, source), interpreter=python)


def test_decoupled_responses_are_streamed(
    python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = execute("""
def answer(sender, values):
    for value in values:
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.full((1, 1), value, np.float32))]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
for request in requests:
    values = request.inputs()[0].as_numpy()[0]
    if len(values):
        threading.Thread(target=answer, args=(request.get_response_sender(), values)).start()
""")
    with caplog.at_level(logging.INFO, logger="backends"):
        served = Served(PythonBackend, config(DECOUPLED), write(tmp_path, source), interpreter=python)
    for values in ([1, 2], []):  # of the second the model drops the sender
        (call,) = served(infer({"I": np.array([values], np.float32)}))
        *responses, last = call.wait()
        assert [r.outputs[0].array()[0, 0] for r in responses] == values
        assert last.final and not last.outputs and last.failure is None
    served.close()


def test_a_decoupled_request_that_is_rescheduled_is_let_go(python: Path, tmp_path: Path) -> None:
    source = execute("""
for request in requests:
    output = pb_utils.Tensor("O", request.inputs()[0].as_numpy())
    request.get_response_sender().send(pb_utils.InferenceResponse([output]))
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
""")
    served = Served(PythonBackend, config(DECOUPLED), write(tmp_path, source), interpreter=python)
    (call,) = served(infer({"I": np.ones((1, 1), np.float32)}))
    assert call.rescheduled and [response.final for response in call.responses] == [False]
    assert not served.instance.state._process.process.in_flight
    served.close()


def test_printed_output_is_logged(python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="backends"):
        served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
        served.close()
    assert "m_0_0: a word of the model" in [record.getMessage() for record in caplog.records]


def test_giving_up_on_an_async_call_cancels_it(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    class Silent(Answering):
        def send(self, *_: Any) -> Cancel:
            return lambda advice=False: cancelled.set()

    monkeypatch.setattr(server_api._Installed, "api", Silent())
    source = execute("""
async def hurry():
    try:
        await asyncio.wait_for(pb_utils.InferenceRequest("", 0, [], [], "x").async_exec(), 0.1)
    except asyncio.TimeoutError:
        pass
asyncio.run(hurry())
return [pb_utils.InferenceResponse([])]
""")
    served = Served(PythonBackend, config(text()), write(tmp_path, source), interpreter=python)
    ask(served, "")
    assert cancelled.wait(SECONDS)
    served.close()
