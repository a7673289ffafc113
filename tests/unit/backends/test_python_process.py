"""Python models in a process of their own environment: real processes, one for most of the tests."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from backends.base import Model
from backends.python import services
from backends.python.backend import PythonBackend
from backends.python.calls import Calls
from backends.python.errors import TritonModelException
from backends.python.process import environment_variables
from backends.python.supervisor import Supervisor, delay
from tests.unit.backends import environments
from tests.unit.backends.harness import Call, Served, config, infer
from tests.unit.backends.python_models import DECOUPLED, IDENTITY, execute, text, write

SECONDS = 30.0

MODEL = """
import os, signal, sys, time
import only_here

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(64)
        return config

    def initialize(self, args):
        self.args = args
        self.ready = True
        print("a word of the model")
        family = pb_utils.MetricFamily("served", "Requests", pb_utils.MetricFamily.COUNTER)
        self.served = family.Metric({"of": args["model_name"]})

    def execute(self, requests):
        self.served.increment(len(requests))
        return [self.one(r, json.loads(r.parameters()).get("do", "identity")) for r in requests]

    def one(self, request, do):
        found = getattr(self, do)(request)
        if isinstance(found, pb_utils.InferenceResponse) or found is None:
            return found
        if not isinstance(found, np.ndarray):
            found = np.array([[json.dumps(found)]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("O", found)], parameters={"did": do})

    def identity(self, request):
        return request.inputs()[0].as_numpy()

    def in_place(self, request):
        array = request.inputs()[0].as_numpy()
        array += 1
        return array

    def about(self, request):
        tensor = request.inputs()[0]
        return [only_here.WHERE, sys.prefix, self.args["model_instance_name"], __name__,
                request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                request.requested_output_names(),
                request.trace().get_context(), tensor.shape(), tensor.triton_dtype(),
                pb_utils.get_model_dir(), sorted(set(sys.modules) & {"msgspec", "google.protobuf", "ray"})]

    def fails(self, request):
        raise ValueError("no")

    def refuses(self, request):
        error = pb_utils.TritonError("missing", pb_utils.TritonError.NOT_FOUND)
        return pb_utils.InferenceResponse(error=error)

    def odd(self, request):
        return pb_utils.InferenceResponse([], parameters={"p": object()})

    def cancelled(self, request):
        return [request.is_cancelled()]

    def logs(self, request):
        pb_utils.Logger.log_warn("look here")
        return []

    def not_ready(self, request):
        self.ready = False
        return []

    def is_ready(self):
        return self.ready

    def reschedules(self, request):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def later(self, request):
        sender = request.get_response_sender()
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([[b"later"]], dtype=object))])
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        threading.Timer(0.05, lambda: sender.send(answer, final)).start()

    def call(self, name, **more):
        tensor = pb_utils.Tensor("x", np.arange(3, dtype=np.float32))
        return pb_utils.InferenceRequest("", 0, [tensor], ["y"], name, **more)

    def calls(self, request):
        response = self.call("m2", trace=request.trace()).exec()
        return pb_utils.get_output_tensor_by_name(response, "y").as_numpy().tolist()

    def calls_twice(self, request):
        async def both():
            return await asyncio.gather(self.call("m2").async_exec(), self.call("m2").async_exec())
        return [len(r.output_tensors()) for r in asyncio.run(both())]

    def calls_many(self, request):
        responses = self.call("many").exec(decoupled=True)
        return [[t.as_numpy().tolist() for t in r.output_tensors()] for r in responses]

    def calls_nobody(self, request):
        error = self.call("nobody").exec().error()
        return [error.message(), error.code()]

    def manages(self, request):
        pb_utils.load_model("new", "{}", {"file:1/x": b"ab"})
        try:
            pb_utils.unload_model("bad")
        except pb_utils.TritonModelException as error:
            return [str(error), pb_utils.is_model_ready("new"), pb_utils.is_model_ready("new", "7")]

    def ends(self, request):
        os._exit(3)

    def crashes(self, request):
        os.kill(os.getpid(), signal.SIGSEGV)

    def hangs(self, request):
        time.sleep(60)

    def finalize(self):
        open(self.args["model_repository"] + "/finalized", "w").close()
"""


class Answering(Calls):
    """The rest of the server, for models that call others."""

    def __init__(self) -> None:
        super().__init__("m")
        self.asked: list[Any] = []

    def submit(
        self, infer: InferRequest, sink: Callable[[InferResponse], None], decoupled: bool
    ) -> Callable[[], None]:
        self.asked.append(infer)
        if infer.model_name == "nobody":
            sink(failed(unavailable("nobody is not ready")))
            return lambda: None
        y = Tensor.of("y", infer.inputs[0].array() * 2)
        if decoupled:
            sink(InferResponse(outputs=(y,), final=False))
            sink(InferResponse(outputs=(y,), final=False))
        sink(InferResponse(outputs=() if decoupled else (y,)))
        return lambda: None

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self.asked.append((name, config, dict(files)))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise TritonModelException(f"failed to unload '{name}'")

    def is_model_ready(self, name: str, version: str) -> bool:
        return not version


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.make(tmp_path_factory.mktemp("environment") / "env")


@pytest.fixture(scope="module")
def served(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write(tmp_path_factory.mktemp("model"), MODEL)
    made = Served(PythonBackend, config(text()), folder, interpreter=python)
    yield made
    made.close()
    assert (folder / "finalized").exists()


def ask(served: Served, do: str, array: Any = None, **fields: Any) -> Call:
    inputs = {"I": np.ones((1, 2), np.float32) if array is None else array}
    (call,) = served(infer(inputs, parameters={"do": do}, **fields))
    return call


def told(call: Call) -> Any:
    return json.loads(call.arrays["O"][0, 0])


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


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
def test_tensors(array: Any, served: Served) -> None:
    call = ask(served, "identity", array)
    assert call.arrays["O"].tolist() == array.tolist()
    assert call.responses[0].parameters == {"did": "identity"}


def test_an_input_may_be_changed_in_place(served: Served) -> None:
    for size in (2, 100_000):
        array = np.zeros((1, size), np.float32)
        assert ask(served, "in_place", array).arrays["O"].sum() == size
        assert array.sum() == 0


def test_a_batch(served: Served) -> None:
    requests = [infer({"I": np.full((1, 2), n, np.float32)}, id=str(n)) for n in range(3)]
    calls = served(*requests)
    assert [call.arrays["O"][0, 0] for call in calls] == [0, 1, 2]
    assert [call.responses[0].id for call in calls] == ["0", "1", "2"]
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0


def test_what_the_model_sees(served: Served, python: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = ask(served, "about", id="9", sequence_id="s", sequence_start=True, timeout_us=5, trace=trace)
    root = str(python.parent.parent)
    assert told(call) == [
        root, root, "m_0_0", "1.model", "9", "s", 1, 5, ["O"], json.dumps({"traceparent": trace}),
        [1, 2], 11, str(served.model.version_directory), [],
    ]  # fmt: skip


def test_errors(served: Served) -> None:
    prefix = "Failed to process the request(s) for model instance 'm_0_0', message: ValueError: no\n\nAt:\n  "
    assert ask(served, "fails").error.startswith(prefix + str(served.model.version_directory / "model.py"))
    refused = ask(served, "refuses").responses[0].error
    assert refused is not None
    assert (refused.code, refused.message) == (ErrorCode.NOT_FOUND, "missing")
    assert "response parameter 'p' is of type 'object'" in ask(served, "odd").error


def test_is_cancelled(served: Served) -> None:
    for cancelled in (True, False):
        call = Call(infer({"I": np.ones((1, 2), np.float32)}, parameters={"do": "cancelled"}))
        call.cancelled = cancelled
        served.backend.instance_execute(served.instance, [call])
        assert told(call) == [cancelled]


def test_its_log_is_ours(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="backends"):
        ask(served, "logs")
        until(lambda: caplog.records, "the record")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage(), record.filename) == ("WARNING", "look here", "model.py")


def test_rescheduled_and_detached_requests(served: Served) -> None:
    call = ask(served, "reschedules")
    assert (call.rescheduled, call.abandoned, call.responses) == (True, False, [])
    call = ask(served, "later")
    assert call.detached
    assert call.arrays["O"].tolist() == [[b"later"]]


def test_calls_of_other_models(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Answering()
    monkeypatch.setattr(services._Installed, "services", rest)
    assert told(ask(served, "calls", trace="-")) == [0, 2, 4]
    assert (rest.asked[0].model_name, rest.asked[0].trace, rest.asked[0].chain) == ("m2", "-", ("m",))
    assert told(ask(served, "calls_twice")) == [1, 1]
    assert told(ask(served, "calls_many")) == [[[0, 2, 4]], [[0, 2, 4]], []]
    assert told(ask(served, "calls_nobody")) == ["nobody is not ready", 4]
    assert told(ask(served, "manages")) == ["failed to unload 'bad'", True, False]
    assert rest.asked[-1] == ("new", "{}", {"file:1/x": b"ab"})


def test_custom_metrics(served: Served) -> None:
    (family,) = served.backend.metrics()
    assert family[:3] == ["served", "Requests", "counter"]
    ask(served, "logs")
    ((labels, value, *_),) = served.backend.metrics()[0][3]
    assert (labels, value) == ({"of": "m"}, family[3][0][1] + 1)


@pytest.mark.parametrize(("do", "how"), [("ends", "exit status 3"), ("crashes", "signal SIGSEGV")])
def test_a_process_that_dies_is_started_again(
    do: str, how: str, python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
    changes = threading.Semaphore(0)
    served.instance.readiness_changed = changes.release
    supervisor: Supervisor = served.instance.state
    first = supervisor.pid
    call = ask(served, do)
    error = call.responses[0].error
    assert error is not None
    assert (error.code, error.message) == (
        ErrorCode.INTERNAL,
        "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is not"
        " healthy.",
    )
    assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]  # waits for the new process
    assert supervisor.pid not in (0, first) and served.backend.instance_ready(served.instance)
    assert changes.acquire(timeout=SECONDS)
    assert f"process of instance 'm_0_0' ended with {how}" in caplog.text
    served.close()


def test_requests_and_readiness_while_it_dies_again_and_again(python: Path, tmp_path: Path) -> None:
    source = IDENTITY.replace(
        "    def execute", "    def initialize(self, args):\n        START\n    def execute"
    )
    flag = tmp_path / "broken"
    start = f"import os; assert not os.path.exists({str(flag)!r})"
    folder = write(tmp_path, source.replace("START", start))
    served = Served(PythonBackend, config(text()), folder, interpreter=python)
    flag.touch()
    os.kill(served.instance.state.pid, signal.SIGKILL)
    until(lambda: not served.backend.instance_ready(served.instance), "not ready")
    request = infer({"I": np.ones((1, 2), np.float32)})

    def refused() -> bool:
        try:
            (call,) = served(request)
        except InferError as error:
            assert error.code is ErrorCode.UNAVAILABLE and "is not healthy" in error.message
            return True
        return call.responses[0].error is None

    until(refused, "refused")
    assert not served.backend.instance_ready(served.instance)
    flag.unlink()
    until(lambda: served.backend.instance_ready(served.instance), "ready again")
    (call,) = served(request)
    assert call.arrays["O"].tolist() == [[1, 1]]
    served.close()


def test_requests_under_way_when_it_is_killed(served: Served) -> None:
    pid = served.instance.state.pid
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    assert ask(served, "hangs").error.endswith("Stub process 'm_0_0' is not healthy.")
    assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]


def test_delay_between_crashes() -> None:
    assert [delay(crashes) for crashes in (1, 2, 3, 4, 100)] == [0, 0.5, 1, 2, 30]


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


def test_decoupled(python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        assert last.final and not last.outputs and last.error is None
    served.close()


def test_what_it_prints_is_logged(python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="backends"):
        served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
        served.close()
    assert "m_0_0: a word of the model" in [record.getMessage() for record in caplog.records]


def test_models_that_do_not_load(python: Path, tmp_path: Path) -> None:
    def error_of(folder: Path, interpreter: Path, **settings: str) -> str:
        with pytest.raises(InferError) as caught:
            Served(PythonBackend, config(text()), folder, settings, interpreter)
        return caught.value.message

    folder = write(tmp_path / "a", "import no_such_module")
    assert error_of(folder, python).startswith(
        "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n"
    )
    folder = write(tmp_path / "b", "import os\nprint('a last word', flush=True)\nos._exit(4)")
    message = error_of(folder, python)
    assert "Stub process 'm_0_0' is not healthy." in message
    assert "exit status 4" in message and "a last word" in message
    assert "unable to start" in error_of(folder, tmp_path / "nothing")
    bare = environments.make(tmp_path / "bare", borrow_numpy=False)
    assert "has no numpy, which every Python model needs" in error_of(folder, bare)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o700)
    message = error_of(folder, slow, **{"stub-timeout-seconds": "0.1"})
    assert message.startswith("Timed out occurred while waiting for the stub process (0.1 s).")
    assert "must be a number" in error_of(folder, python, **{"stub-timeout-seconds": "soon"})


def test_it_ends_with_its_replica(python: Path, tmp_path: Path) -> None:
    folder = write(tmp_path, MODEL)
    source = f"""
import os, signal
from pathlib import Path
from backends.python.backend import PythonBackend
from tests.unit.backends.harness import Served, config
from tests.unit.backends.python_models import text
made = Served(PythonBackend, config(text()), Path({str(folder)!r}), interpreter=Path({str(python)!r}))
print(made.instance.state.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", source], cwd=root, capture_output=True, timeout=60)
    pid = int(done.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended")


def test_environment_variables(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    inherited = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "HOME": "/h", "PATH": "/bin"}
    assert environment_variables(tmp_path / "bin" / "python", inherited) == {
        "HOME": "/h",
        "PATH": f"{tmp_path}/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "CONDA_PREFIX": str(tmp_path),
        "LD_LIBRARY_PATH": f"{tmp_path}/lib",
    }


def test_giving_up_on_an_async_call_cancels_it(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    class Silent(Answering):
        def submit(self, *_: Any) -> Callable[[], None]:
            return cancelled.set

    monkeypatch.setattr(services._Installed, "services", Silent())
    source = execute("""
async def hurry():
    try:
        await asyncio.wait_for(pb_utils.InferenceRequest(model_name="x").async_exec(), 0.1)
    except asyncio.TimeoutError:
        pass
asyncio.run(hurry())
return [pb_utils.InferenceResponse([])]
""")
    served = Served(PythonBackend, config(text()), write(tmp_path, source), interpreter=python)
    ask(served, "")
    assert cancelled.wait(SECONDS)
    served.close()
