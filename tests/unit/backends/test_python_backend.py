"""Python models, written here, through the python backend."""

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from backends.base import Model
from backends.python import pb_utils, services
from backends.python.backend import PythonBackend
from tests.unit.backends.harness import Served, config, infer

HEAD = """
import asyncio
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils
"""
IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "I")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("O", tensor.as_numpy())]))
        return responses
"""
FINAL = "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"

Load = Callable[..., Served]


def text(kind: str = "TYPE_FP32", extra: str = "") -> str:
    return f"""
        name: "m" backend: "python" max_batch_size: 8
        input {{ name: "I" data_type: {kind} dims: -1 }}
        output {{ name: "O" data_type: {kind} dims: -1 }} {extra}
    """


DECOUPLED = text(extra="model_transaction_policy { decoupled: true }")


def write(folder: Path, source: str) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(HEAD + source)
    return folder


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Load a model of the source; what it put into the process is gone after the test."""
    before = set(sys.modules), list(sys.path)
    loaded: list[Served] = []

    def load(source: str, configuration: str = "") -> Served:
        # The first in tmp_path itself, where tests look for it.
        folder = tmp_path / str(len(loaded)) if loaded else tmp_path
        served = Served(PythonBackend, config(configuration or text()), write(folder, source))
        loaded.append(served)
        return served

    yield load
    for served in loaded:
        served.close()
    assert sys.path == before[1]
    assert not {"1", "1.model", "helper"} & (set(sys.modules) - before[0])


def execute(body: str, **functions: str) -> str:
    """A model whose `execute` has this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"class TritonPythonModel:\n    def execute(self, requests):\n{lines}\n"


def row(*values: float) -> Any:
    return infer({"I": np.array([values], np.float32)}, id="9")


def failure(served: Served, *requests: Any) -> str:
    call, *_ = served(*(requests or [row(1)]))
    prefix = "Failed to process the request(s) for model instance 'm_0_0', message: "
    assert call.error.startswith(prefix)
    return call.error.removeprefix(prefix)


def test_identity_of_a_batch(load: Load) -> None:
    served = load(IDENTITY)
    calls = served(row(1), row(2, 3))
    assert [call.arrays["O"].tolist() for call in calls] == [[[1]], [[2, 3]]]
    response = calls[0].responses[0]
    assert (response.id, response.model_name, response.model_version) == ("9", "m", "1")
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0


@pytest.mark.parametrize("kind", ["BOOL", "INT8", "UINT64", "FP16", "FP64", "STRING", "BF16"])
def test_data_types(kind: str, load: Load) -> None:
    served = load(IDENTITY, text(f"TYPE_{kind}"))
    if kind == "STRING":
        array: Any = np.array([[b"a\xff", b""]], dtype=object)
    else:
        array = np.array(
            [[1, 0]], {"BF16": "uint16", "FP16": "float16", "FP64": "float64"}.get(kind, kind.lower())
        )
    wire = "BYTES" if kind == "STRING" else kind
    (call,) = served(infer({"I": Tensor.of("I", array, wire)}))
    assert call.arrays["O"].tolist() == array.tolist()
    assert call.responses[0].outputs[0].datatype == wire


def test_arguments_of_initialize_and_finalize(load: Load, tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        text = json.dumps([self.args, pb_utils.get_model_dir()])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([text], dtype=object))])]
    def finalize(self):
        open(self.args["model_repository"] + "/finalized", "w").close()
"""
    served = load(source)
    (call,) = served(row(1))
    arguments, folder = json.loads(call.arrays["O"][0])
    model_config = json.loads(arguments.pop("model_config"))
    assert (model_config["name"], model_config["max_batch_size"]) == ("m", 8)
    assert pb_utils.get_output_config_by_name(model_config, "O") == model_config["output"][0]
    assert arguments == {
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_instance_name": "m_0_0",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "m",
    }
    assert folder == str(tmp_path / "1")
    served.backend.instance_finalize(served.instance)
    assert (tmp_path / "finalized").exists()


def test_imports_beside_the_model(load: Load, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "helper.py").write_text("A = 1\n")
    (tmp_path / "other.py").write_text("B = 2\n")
    source = "from .helper import A\nimport helper, other\nassert (A, helper.A, other.B) == (1, 1, 2)\n"
    load(source + "assert __name__ == '1.model'\n" + IDENTITY)


def test_what_a_request_tells(load: Load) -> None:
    source = execute("""
r = requests[0]
told = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
        r.requested_output_names(), r.is_cancelled(), [t.name() for t in r.inputs()],
        r.inputs()[0].shape(), r.inputs()[0].triton_dtype(),
        r.inputs()[0].is_cpu(), r.inputs()[0] is r.inputs()[0], r.trace().get_context()]
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([json.dumps(told)], dtype=object))],
        parameters={"p": 1})]
""")
    request = infer(
        {"I": np.ones((1, 2), np.float32)},
        id="7",
        sequence_id="seq",
        sequence_start=True,
        sequence_end=True,
        timeout_us=5,
        parameters={"k": "v", "n": 1},
    )
    (call,) = load(source)(request)
    assert json.loads(call.arrays["O"][0]) == [
        "7", "seq", 3, 5, '{"k": "v", "n": 1}', ["O"], False, ["I"], [1, 2], 11, True, True, None,
    ]  # fmt: skip
    assert call.responses[0].parameters == {"p": 1}


def test_only_requested_outputs_are_returned(load: Load) -> None:
    source = execute('return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.ones(1)) for n in "OP"])]')
    (call,) = load(source)(infer({"I": np.ones((1, 1), np.float32)}, ["P"]))
    assert list(call.arrays) == ["P"]


def test_error_of_one_response(load: Load) -> None:
    source = execute("""
bad = pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one", pb_utils.TritonError.NOT_FOUND))
plain = pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError("oh"))
good = pb_utils.InferenceResponse([pb_utils.Tensor("O", requests[1].inputs()[0].as_numpy())])
return [bad, good, plain]
""")
    bad, good, plain = load(source)(row(1), row(2), row(3))
    assert bad.error == "not this one"
    assert bad.responses[0].error is not None
    assert bad.responses[0].error.code is ErrorCode.NOT_FOUND
    assert good.arrays["O"].tolist() == [[2]]
    assert plain.responses[0].error is not None
    assert plain.responses[0].error.code is ErrorCode.INTERNAL


def test_exception_in_execute(load: Load, tmp_path: Path) -> None:
    served = load(execute('raise pb_utils.TritonModelException("boom")'))
    assert failure(served) == f"TritonModelException: boom\n\nAt:\n  {tmp_path}/1/model.py(9): execute\n"
    assert failure(load(execute("import sys; sys.exit(3)"))).startswith("SystemExit: 3\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ("return 3", "Expected a list in the execute return, found type '<class 'int'>'."),
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
            " InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "return ['x']",
            "Expected an 'InferenceResponse' object in the execute function return list, found"
            " type '<class 'str'>'.",
        ),
        (
            "return [None]",
            "Expected an 'InferenceResponse' object in the execute function return list,"
            " found type '<class 'NoneType'>'.",
        ),
        (
            "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\n"
            "return [pb_utils.InferenceResponse([])]",
            "Expected a None object in the execute function return list for reschduled request, found type"
            " '<class 'backends.python.response.InferenceResponse'>'.",
        ),
    ],
)
def test_wrong_returns(body: str, message: str, load: Load) -> None:
    assert failure(load(execute(body))) == message


def test_output_that_cannot_be_sent_fails_its_own_request(load: Load) -> None:
    source = execute("""
arrays = [np.array([1 + 2j]), np.ones((1, 1), np.float32)]
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", array)]) for array in arrays]
""")
    bad, good = load(source)(row(1), row(1))
    assert "no data type corresponds to numpy dtype 'complex128'" in bad.error
    assert good.arrays["O"].tolist() == [[1]]


def test_rescheduled_requests_are_left_to_the_scheduler(load: Load) -> None:
    source = execute(
        "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [None]"
    )
    for configuration in (text(), DECOUPLED):
        body = source.replace("[None]", "None") if configuration is DECOUPLED else source
        (call,) = load(body, configuration)(row(1))
        gc.collect()
        assert (call.rescheduled, call.abandoned, call.responses) == (True, False, [])


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
    assert response.final and response.error is None


def test_decoupled_model_must_return_none(load: Load) -> None:
    assert failure(load(IDENTITY, DECOUPLED)) == (
        "Python model 'm' is using the decoupled mode and the execute function must return None."
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
    assert [response.error for response in responses] == [None] * len(responses)
    assert [response.final for response in responses] == [False] * (len(responses) - 1) + [True]


def test_sender_of_a_model_that_is_not_decoupled_may_answer_later(load: Load) -> None:
    source = execute("self.sender = requests[0].get_response_sender()")
    served = load(source)
    (call,) = served(row(1))
    assert call.detached and not call.abandoned and not call.answered
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


def test_strings_that_are_no_bytes_are_printed(load: Load) -> None:
    source = execute(
        'return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array(["é", 3, b"x"], dtype=object))])]'
    )
    (call,) = load(source)(row(1))
    assert call.arrays["O"].tolist() == ["é".encode(), b"3", b"x"]


def test_tensors_refuse_unicode_arrays_and_other_objects() -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"Please use np.object_ instead\."):
        pb_utils.Tensor("O", np.array(["a"]))
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
    received = pb_utils.Tensor._received(wire)
    assert torch.equal(torch.from_dlpack(received), source)
    floats = pb_utils.Tensor.from_dlpack("T", torch.ones(3))
    assert (floats.triton_dtype(), floats.as_numpy().tolist()) == (11, [1, 1, 1])


def test_is_ready(load: Load) -> None:
    served = load(IDENTITY + "    def is_ready(self):\n        return self.ready\n")
    model = served.instance.state.model
    for value, expected in ((True, True), (False, False), ("yes", False)):
        model.ready = value
        assert served.backend.instance_ready(served.instance) is expected
    del model.ready
    assert not served.backend.instance_ready(served.instance)


def test_is_ready_may_be_async_or_absent_and_has_a_time_limit(load: Load) -> None:
    assert load(IDENTITY).backend.instance_ready(load(IDENTITY).instance)
    source = IDENTITY + "    async def is_ready(self):\n        await asyncio.sleep(0)\n        return True\n"
    served = load(source)
    assert served.backend.instance_ready(served.instance)
    served = load(IDENTITY + "    def is_ready(self):\n        self.gate.wait()\n        return True\n")
    served.instance.state.is_ready._limit_s = 0.01
    gate = served.instance.state.model.gate = threading.Event()
    assert not served.backend.instance_ready(served.instance)
    assert not served.backend.instance_ready(served.instance)
    gate.set()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  {}(7): <module>\n",
        ),
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("class TritonPythonModel: pass", "Python model {} does not implement `execute` method."),
        (
            IDENTITY + "    def initialize(self, args):\n        raise ValueError('no weights')\n",
            "ValueError: no weights\n\nAt:\n  {}(",
        ),
    ],
)
def test_models_that_do_not_load(source: str, message: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        load(source)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message.startswith(message.format(tmp_path / "1" / "model.py"))


def test_missing_linked_and_escaping_files(load: Load, tmp_path: Path) -> None:
    served_from = tmp_path / "model"
    with pytest.raises(InferError, match="Python model file not found"):
        Served(PythonBackend, config(text()), served_from)
    elsewhere = write(tmp_path / "elsewhere", "import sys\nsys.exit('was run')\n") / "1" / "model.py"
    (served_from / "1").mkdir(parents=True)
    (served_from / "1" / "model.py").symlink_to(elsewhere)
    with pytest.raises(InferError, match="escapes the directory of model 'm'"):
        Served(PythonBackend, config(text()), served_from)
    for name in ("../../elsewhere/1/model.py", str(elsewhere)):
        with pytest.raises(InferError, match="escapes the directory of model 'm'"):
            Served(PythonBackend, config(text(extra=f'default_model_filename: "{name}"')), served_from)


def test_parameter_force_cpu_only(load: Load) -> None:
    extra = 'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{}" }} }}'
    load(IDENTITY, text(extra=extra.format("no")))
    with pytest.raises(InferError, match="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe"):
        load(IDENTITY, text(extra=extra.format("maybe")))


def test_calls_to_other_models_say_that_they_are_not_available(load: Load) -> None:
    source = execute(
        'pb_utils.InferenceRequest(model_name="n", requested_output_names=["O"], inputs=[]).exec()'
    )
    assert failure(load(source)).startswith(
        "TritonModelException: BLS is only supported during the 'execute' function.\n"
    )
    for call in (
        lambda: pb_utils.load_model("n"),
        lambda: pb_utils.unload_model("n"),
        lambda: pb_utils.is_model_ready("n"),
        lambda: pb_utils.MetricFamily("f", "d", pb_utils.MetricFamily.COUNTER),
    ):
        with pytest.raises(pb_utils.TritonModelException, match="is not available in this server"):
            call()


def test_services_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered(services.Unavailable):
        def exec(self, request: Any, decoupled: bool) -> Any:
            return request.target(), request.inputs()[0].name(), decoupled

    monkeypatch.setattr(services._Installed, "services", Offered())
    request = pb_utils.InferenceRequest(
        model_name="n", model_version=2, inputs=[pb_utils.Tensor("I", np.ones(1))]
    )
    assert request.exec(decoupled=True) == (("n", 2), "I", True)


def completed(folder: Path, body: str, configuration: str = 'name: "m" backend: "python"') -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = IDENTITY + f"    @staticmethod\n    def auto_complete_config(c):\n{lines}\n        return c\n"
    model = Model(config(configuration), 1, write(folder, source))
    return text_format.MessageToString(PythonBackend.auto_complete(model), as_one_line=True)


def test_auto_complete(tmp_path: Path) -> None:
    body = """
c.set_max_batch_size(4)
c.set_dynamic_batching()
c.set_model_transaction_policy({"decoupled": True})
c.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
c.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": [4]})
c.as_dict()["instance_group"] = [{"count": 9}]
"""
    assert completed(tmp_path, body) == (
        'name: "m" max_batch_size: 4 input { name: "I" data_type: TYPE_FP32 dims: 4 optional: true }'
        ' output { name: "O" data_type: TYPE_FP32 dims: 4 } dynamic_batching { } backend: "python"'
        " model_transaction_policy { decoupled: true }"
    )
    assert "1.model" not in sys.modules


@pytest.mark.parametrize(
    ("body", "configuration", "message"),
    [
        (
            "c.set_max_batch_size(4)",
            "max_batch_size: 6",
            "configuration specified max_batch_size 6, but in auto-complete-config function for"
            " model 'm' specified"
            " max_batch_size 4",
        ),
        (
            "c.set_dynamic_batching()",
            "sequence_batching { }",
            "Configuration specified scheduling_choice as 'sequence_batching', but"
            " auto-complete-config function for"
            " model 'm' tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            "c.add_input({'name': 'I', 'data_type': 'TYPE_FP32', 'dims': [4]})",
            'input { name: "I" data_type: TYPE_INT32 dims: 4 }',
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'I',"
            " model provides TYPE_FP32",
        ),
        (
            "c.add_output({'name': 'O', 'data_type': 'TYPE_FP32', 'dims': [4]})",
            'output { name: "O" data_type: TYPE_FP32 dims: 16 }',
            "model 'm', tensor 'O': the model expects dims [4] but the model configuration"
            " specifies dims [16]",
        ),
        (
            "c.add_input({'name': 'I', 'dims': [4]})",
            "",
            "input 'I' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        (
            "c.add_output({'data_type': 'TYPE_FP32', 'dims': [4]})",
            "",
            "output in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            "c.add_input({'name': 'I', 'data_type': 'TYPE_FP32', 'dims': [4], 'x': 1})",
            "",
            "input 'I' in auto-complete-config function for model 'm' contains property other than 'name',"
            " 'data_type', 'dims' and 'optional'.",
        ),
        (
            "c.set_model_transaction_policy({'decoupled': True, 'x': 1})",
            "",
            "model transaction property in auto-complete-config function for model 'm' contains"
            " property other than"
            " 'decoupled'.",
        ),
        (
            "c.set_model_transaction_policy({'decoupled': True})",
            "model_transaction_policy { decoupled: false }",
            "trying to change decoupled property in auto-complete-config for model 'm', which"
            " is already set to"
            " 'False'.",
        ),
        (
            "c = 3",
            "",
            "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
        ),
    ],
)
def test_auto_complete_contradictions(body: str, configuration: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        completed(tmp_path, body, f'name: "m" backend: "python" {configuration}')
    assert caught.value.message.removeprefix("ValueError: ").startswith(message)


def test_helpers() -> None:
    array = np.array([b"a", b""], dtype=object)
    packed = pb_utils.serialize_byte_tensor(array)
    assert isinstance(packed, bytes)
    assert pb_utils.deserialize_bytes_tensor(packed).tolist() == [b"a", b""]
    assert pb_utils.serialize_byte_tensor(np.ones(1)) is None
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_to_numpy_type(13) is np.object_
    assert pb_utils.numpy_to_triton_type(np.int32) == 8
    assert pb_utils.numpy_to_triton_type(np.dtype(object)) == 13
    assert pb_utils.using_decoupled_model_transaction_policy(
        {"model_transaction_policy": {"decoupled": True}}
    )
    assert not pb_utils.using_decoupled_model_transaction_policy({})


def test_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="backends.python.model"):
        pb_utils.Logger.log_info("a % s")
        pb_utils.Logger.log("b", pb_utils.Logger.ERROR)
    assert [(r.levelname, r.getMessage(), r.filename) for r in caplog.records] == [
        ("INFO", "a % s", "test_python_backend.py"),
        ("ERROR", "b", "test_python_backend.py"),
    ]
