"""The engine: models of repositories in this process, by arrays."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse
from backends.python.api import server_api
from nereid.engine.engine import Engine
from nereid.engine.sent import MAX_WAITING, Received
from tests.server import free_port
from tests.unit.nereid.engine.repositories import (
    DECOUPLED,
    FP32,
    add_ensemble,
    add_model,
    source,
)
from tests.waiting import block_until

ROOT = Path(__file__).parents[4]
ROW = np.array([1.0, 2.0], np.float32)
Start = Callable[..., Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start engines over the repository `tmp_path`, in mode EXPLICIT with these models loaded."""
    engines: list[Engine] = []

    def start(*models: str, **flags: Any) -> Engine:
        given = {"model_control_mode": "explicit", "load_model": list(models), **flags}
        engines.append(Engine.open(model_repository=[str(tmp_path)], **given))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


ODD_MODEL = (
    source("sys.exit(7)", head="import sys")
    + """
    def is_ready(self):
        sys.exit(6)
    def finalize(self):
        sys.exit(5)
"""
)
EXITS = {
    "the class": "import sys\nsys.exit(4)",
    "auto_complete_config": source("return []", head="import sys")
    + "\n    @staticmethod\n    def auto_complete_config(given):\n        sys.exit(4)",
    "initialize": source("return []", "sys.exit(4)", head="import sys"),
}


@pytest.mark.parametrize("text", EXITS.values(), ids=EXITS)
def test_model_that_exits_does_not_load_and_leaves_the_server(
    start: Start, tmp_path: Path, text: str
) -> None:
    add_model(tmp_path, "m", versions={1: text})
    add_model(tmp_path, "double")
    engine = start("double")
    assert "SystemExit: 4" in failure(lambda: engine.load("m"))[1]
    assert engine.infer("double", {"IN": ROW})["OUT"].tolist() == [2, 4]


def test_model_that_exits_in_its_other_calls_leaves_the_server(start: Start, tmp_path: Path) -> None:
    add_model(tmp_path, "m", versions={1: ODD_MODEL})
    add_model(tmp_path, "double")
    engine = start("double", "m")
    assert not engine.ready("m")
    assert "SystemExit: 7" in failure(lambda: engine.infer("m", {"IN": ROW}))[1]
    engine.unload("m")
    assert engine.infer("double", {"IN": ROW})["OUT"].tolist() == [2, 4]


def failure(call: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(InferError) as raised:
        call()
    return raised.value.code, raised.value.message


def test_arrays_are_answered_and_counted(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "double")
    engine = start("*")
    assert engine.infer("double", {"IN": ROW})["OUT"].tolist() == [2, 4]
    assert engine.infer("double", {"IN": [3, 4]})["OUT"].tolist() == [6, 8]  # a list gets the declared type
    assert engine.submit("double", {"IN": ROW}).result(60)["OUT"].tolist() == [2, 4]
    (found,) = engine.statistics("double").model_stats
    assert (found.inference_count, found.inference_stats.success.count) == (3, 3)


def test_errors_are_those_of_the_server(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "double")
    add_model(tmp_path, "broken", "raise ValueError('no')")
    engine = start("*")
    code, text = failure(lambda: engine.infer("nobody", {}))
    assert (code, text) == (ErrorCode.NOT_FOUND, "Request for unknown model: 'nobody' is not found")
    assert failure(lambda: engine.infer("double", {"IN": np.ones(2, np.int32)}))[0] is ErrorCode.INVALID_ARG
    code, text = failure(lambda: engine.infer("broken", {"IN": ROW}))
    assert code is ErrorCode.INTERNAL and "ValueError: no" in text
    assert isinstance(engine.submit("broken", {"IN": ROW}).exception(10), InferError)


def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path, start: Start) -> None:
    folder = add_model(tmp_path, "m")
    engine = start()
    assert engine.index() == [("m", "", "", "")]
    engine.load("m")
    assert engine.index(ready=True) == [("m", "1", "READY", "")] and engine.ready("m")
    (folder / "1" / "model.py").write_text(source("return [None]", initialize="raise OSError('gone')"))
    code, text = failure(lambda: engine.load("m"))
    assert code is ErrorCode.INVALID_ARG and "gone" in text
    assert engine.infer("m", {"IN": ROW})["OUT"].tolist() == [2, 4]  # as before the failed load
    engine.unload("m")
    assert engine.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
    assert failure(lambda: engine.infer("m", {"IN": ROW}))[0] is ErrorCode.NOT_FOUND


def test_a_reload_serves_the_new_code_and_answers_requests_of_the_old(tmp_path: Path, start: Start) -> None:
    held = "while not os.path.exists(HOLD): time.sleep(0.001)\n"
    reply = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) {})]) for r in requests]"
    head = f"import os, time\nHOLD = {str(tmp_path / 'go')!r}\n"
    folder = add_model(tmp_path, "m", held + reply.format("+ 1"), head=head)
    engine = start("m")
    waiting = engine.submit("m", {"IN": ROW})
    (folder / "1" / "model.py").write_text(source(reply.format("+ 5")))
    engine.load("m")
    assert engine.infer("m", {"IN": ROW})["OUT"].tolist() == [6, 7]
    assert not waiting.done()
    (tmp_path / "go").touch()
    assert waiting.result(60)["OUT"].tolist() == [2, 3]


def test_versions_ensembles_and_calls_between_models(tmp_path: Path, start: Start) -> None:
    policy = FP32 + "version_policy { all { } }\n"
    reply = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) + {})]) for r in requests]"
    both = {number: source(reply.format(number)) for number in (1, 2)}
    add_model(tmp_path, "add", config=policy, versions=both)
    add_model(tmp_path, "double")
    add_ensemble(tmp_path, "chain", "add", "double")
    call = """
    responses = []
    for request in requests:
        call = pb_utils.InferenceRequest(
            model_name='chain', requested_output_names=['OUT'], inputs=request.inputs()
        )
        found = call.exec()
        if found.has_error():
            raise pb_utils.TritonModelException(found.error().message())
        responses.append(pb_utils.InferenceResponse(found.output_tensors()))
    return responses
    """
    add_model(tmp_path, "caller", call)
    engine = start("caller", "chain")  # the ensemble brings what it calls
    assert engine.infer("add", {"IN": ROW}, version="1")["OUT"].tolist() == [2, 3]
    assert engine.infer("caller", {"IN": ROW})["OUT"].tolist() == [6, 8]
    counted = engine.statistics("add", "2").model_stats[0].inference_stats
    assert counted.success.count == 1
    assert engine.statistics("chain").model_stats[0].inference_stats.success.count == 1
    itself = call.replace("chain", "circle")
    add_model(tmp_path, "circle", itself)
    engine.load("circle")
    found = failure(lambda: engine.infer("circle", {"IN": ROW}))[1]
    assert "circular call of models: circle -> circle" in found


def test_responses_of_a_decoupled_model_come_one_by_one(tmp_path: Path, start: Start) -> None:
    execute = """
    for request in requests:
        sender = request.get_response_sender()
        for value in _in(request):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    add_model(tmp_path, "each", execute, config=FP32 + DECOUPLED)
    engine = start("each")
    found = [outputs["OUT"].tolist() for outputs in engine.stream("each", {"IN": ROW})]
    assert found == [[1], [2]]
    assert list(engine.stream("each", {"IN": np.zeros(0, np.float32)})) == []


def test_responses_that_nobody_reads_end_their_request() -> None:
    received, cancelled = Received(), []
    received.cancel = lambda advice=False: cancelled.append(True)
    for _ in range(MAX_WAITING + 5):
        received.receive(InferResponse(final=False))
    assert cancelled
    read = [received.next() for _ in range(MAX_WAITING + 1)]
    assert read[-1].failure is not None and "wait to be read" in read[-1].failure.message
    received.receive(InferResponse())
    assert received.next().final


def test_a_cancelled_future_cancels_its_request(tmp_path: Path, start: Start) -> None:
    execute = """
    while not requests[0].is_cancelled(): time.sleep(0.001)
    open(SEEN, 'w').close()
    return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    seen = tmp_path / "seen"
    add_model(tmp_path, "waits", execute, head=f"import time\nSEEN = {str(seen)!r}\n")
    engine = start("waits")
    assert engine.submit("waits", {"IN": ROW}).cancel()
    block_until(seen.exists)


def test_each_model_has_its_own_helper_modules_and_directory(tmp_path: Path, start: Start) -> None:
    execute = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([self.n], np.float32))])]"
    init = "self.n = helper.N + 10 * pb_utils.get_model_dir().endswith(args['model_name'] + '/1')"
    for number, name in enumerate(("one", "two")):
        text = f"N = {number + 1}\n"
        add_model(
            tmp_path, name, execute, head="import helper\n", initialize=init, files={"1/helper.py": text}
        )
    arguments, path = list(sys.argv), list(sys.path)
    engine = start("one", "two")
    assert [engine.infer(name, {"IN": ROW})["OUT"].tolist() for name in ("one", "two")] == [[11], [12]]
    assert sys.argv == arguments
    engine.close()
    assert sys.path == path and "helper" not in sys.modules
    assert isinstance(server_api.current(), server_api.NoServerApi)


def test_an_instance_may_import_while_another_model_is_imported(tmp_path: Path, start: Start) -> None:
    wait = "import pathlib, time\nwhile not pathlib.Path(%r).exists():\n    time.sleep(0.01)\nN = 7\n"
    begun = f"open({str(tmp_path / 'in')!r}, 'w').close()\n"
    init = "import late\nself.n = late.N"
    execute = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(requests[0]) + self.n)])]"
    files = {"1/late.py": begun + wait % str(tmp_path / "go")}
    add_model(tmp_path, "slow", execute, initialize=init, files=files)
    meanwhile = f"import time\nopen({str(tmp_path / 'go')!r}, 'w').close()\ntime.sleep(0.3)\n"
    add_model(tmp_path, "double", head=meanwhile)
    engine = start()
    loading = threading.Thread(target=engine.load, args=("slow",))
    loading.start()
    block_until((tmp_path / "in").exists)
    engine.load("double")
    loading.join()
    assert engine.infer("slow", {"IN": ROW})["OUT"].tolist() == [8, 9]


def test_folders_that_a_model_adds_are_its_own(tmp_path: Path, start: Start) -> None:
    head = "import sys\nsys.path.insert(0, __file__.replace('model.py', 'more'))\nimport tool\n"
    (tmp_path / "first" / "1" / "more").mkdir(parents=True)
    add_model(tmp_path, "first", head=head, files={"1/more/tool.py": ""})
    add_model(tmp_path, "second", head="import tool\n")
    path = list(sys.path)
    engine = start("first")
    assert "No module named 'tool'" in failure(lambda: engine.load("second"))[1]
    engine.unload("first")
    assert sys.path == path and "tool" not in sys.modules


def test_one_model_calls_others_while_another_loads(tmp_path: Path, start: Start) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    wait = f"open({str(begun)!r}, 'w').close()\n"
    wait += f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.001)"
    add_model(tmp_path, "slow", initialize=wait)
    add_model(tmp_path, "double")
    call = """
    (request,) = requests
    found = pb_utils.InferenceRequest(
        model_name='double', requested_output_names=['OUT'], inputs=request.inputs()
    ).exec()
    return [pb_utils.InferenceResponse(found.output_tensors())]
    """
    add_model(tmp_path, "caller", call)
    engine = start("double", "caller")
    loading = threading.Thread(target=engine.load, args=("slow",))
    loading.start()
    block_until(begun.exists)
    try:
        assert engine.infer("caller", {"IN": ROW})["OUT"].tolist() == [2, 4]
    finally:
        gate.touch()
        loading.join(60)


WITHOUT_RAY = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ImportError("there is no Ray here")
sys.meta_path.insert(0, Refused())
import nereid.testing
from nereid.engine.engine import Engine
from nereid.inprocess import KServeGrpc, KServeHttp, Metrics, Server
with Engine.open(model_repository=[sys.argv[1]]) as engine:
    print(engine.infer("chain", {"IN": [1, 2]})["OUT"].tolist(), engine.index())
with Server(model_repository=sys.argv[1]) as server:
    for front, port in zip((KServeHttp, KServeGrpc, Metrics), map(int, sys.argv[2:])):
        with front(server, front.Options(port=port)):
            pass
    assert "nv_inference_count" in server.metrics()
print([name for name in sys.modules if name.partition(".")[0] == "ray"])
"""


def test_the_engine_serves_where_ray_cannot_be_imported(tmp_path: Path) -> None:
    add_model(tmp_path, "double", config=FP32 + "max_batch_size: 0\n")
    add_model(tmp_path, "batched", config=FP32.replace("[ -1 ]", "[ 2 ]") + "dynamic_batching { }\n")
    ports = [str(free_port()) for _ in range(3)]
    add_ensemble(tmp_path, "chain", "double", "double")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, str(tmp_path), *ports],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answered, rest = done.stdout.strip().split("\n") if done.stdout else ("", done.stderr[-2000:])
    assert answered.startswith("[4.0, 8.0] [('batched', '1', 'READY', '')"), done.stderr[-2000:]
    assert rest == "[]"
