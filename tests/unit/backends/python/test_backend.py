"""Python models, written here, through the python backend."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from backends.python.api import pb_utils
from backends.python.backend import PythonBackend
from backends.python.execution import readiness
from tests.unit.backend_harness import Served, config, infer
from tests.unit.python_models import IDENTITY, Load, execute, failure, row, text, write


def test_identity_of_a_batch(load: Load) -> None:
    served = load(IDENTITY)
    calls = served(row(1), row(2, 3))
    assert [call.arrays["O"].tolist() for call in calls] == [[[1]], [[2, 3]]]
    response = calls[0].responses[0]
    assert (response.id, response.model_name, response.model_version) == ("9", "m", "1")
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0


@pytest.mark.parametrize("character", ";|&$`<>()[]{}\\\"'*?~#!")
def test_name_that_a_shell_interprets_is_refused(tmp_path: Path, character: str) -> None:
    """With the text of Triton's stub, in whose command line the name is."""
    named = config(text())
    named.name = f"m{character}"
    with pytest.raises(InferError, match="Invalid stub name: contains invalid characters"):
        Served(PythonBackend, named, write(tmp_path, IDENTITY))


@pytest.mark.parametrize("kind", ["BOOL", "INT8", "UINT64", "FP16", "FP64", "STRING", "BF16"])
def test_every_data_type_round_trips(kind: str, load: Load) -> None:
    by_array = 'pb_utils.Tensor("O", tensor.as_numpy())'
    assert by_array in IDENTITY
    by_capsule = 'pb_utils.Tensor.from_dlpack("O", tensor.to_dlpack())'  # BF16 has no array
    source = IDENTITY.replace(by_array, by_capsule) if kind == "BF16" else IDENTITY
    served = load(source, text(f"TYPE_{kind}"))
    if kind == "STRING":
        array: Any = np.array([[b"a\xff", b""]], dtype=object)
    else:
        array = np.array(
            [[1, 0]], {"BF16": "uint16", "FP16": "float16", "FP64": "float64"}.get(kind, kind.lower())
        )
    wire = "BYTES" if kind == "STRING" else kind
    (call,) = served(infer({"I": Tensor.from_array("I", array, wire)}))
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
    devices = "secondary_devices { kind: KIND_NVDLA device_id: 3 }"
    served = load(source, text(extra=f"instance_group {{ kind: KIND_CPU {devices} }}"))
    (call,) = served(row(1))
    arguments, folder = json.loads(call.arrays["O"][0])
    model_config = json.loads(arguments.pop("model_config"))
    assert (model_config["name"], model_config["max_batch_size"]) == ("m", 8)
    assert pb_utils.get_output_config_by_name(model_config, "O") == model_config["output"][0]
    (group,) = model_config["instance_group"]
    assert group["secondary_devices"] == [{"kind": "KIND_NVDLA", "device_id": "3"}]
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


def test_request_returns_every_field(load: Load) -> None:
    source = execute("""
r = requests[0]
told = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
        sorted(r.requested_output_names()), r.is_cancelled(), [t.name() for t in r.inputs()],
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
    assert bad.responses[0].failure is not None
    assert bad.responses[0].failure.code is ErrorCode.NOT_FOUND
    assert good.arrays["O"].tolist() == [[2]]
    assert plain.responses[0].failure is not None
    assert plain.responses[0].failure.code is ErrorCode.INTERNAL


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
            " '<class 'backends.python.api.response.InferenceResponse'>'.",
        ),
    ],
)
def test_wrong_returns(body: str, message: str, load: Load) -> None:
    assert failure(load(execute(body))) == message


def test_output_that_cannot_be_sent_fails_its_own_request(load: Load) -> None:
    source = execute("""
responses = [pb_utils.InferenceResponse([np.ones(1)])]
for kind in (">f4", "f4"):
    try:
        response = pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones((1, 1), kind))])
    except pb_utils.TritonModelException as error:
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
    responses.append(response)
return responses
""")
    none, bad, good = load(source)(row(1), row(1), row(1))
    assert "outputs of an 'InferenceResponse', found type '<class 'numpy.ndarray'>'" in none.error
    assert "NumPy dtype is not supported. It is dtype('>f4')" in bad.error
    assert good.arrays["O"].tolist() == [[1]]


def test_tensors_that_are_no_outputs_are_dropped(load: Load) -> None:
    source = execute("""
tensors = [pb_utils.Tensor(name, np.ones((1, 1), np.float32)) for name in ("X", "O")]
return [pb_utils.InferenceResponse(tensors)]
""")
    (call,) = load(source)(row(1))
    assert list(call.arrays) == ["O"]


def test_is_ready(load: Load) -> None:
    served = load(IDENTITY + "    def is_ready(self):\n        return self.ready\n")
    model = served.instance.state.model
    for value, expected in ((True, True), (False, False), ("yes", False)):
        model.ready = value
        assert served.backend.instance_ready(served.instance) is expected
    del model.ready
    assert not served.backend.instance_ready(served.instance)


def test_is_ready_may_be_async_or_absent_and_has_a_time_limit(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(IDENTITY).backend.instance_ready(load(IDENTITY).instance)
    source = IDENTITY + "    async def is_ready(self):\n        await asyncio.sleep(0)\n        return True\n"
    served = load(source)
    assert served.backend.instance_ready(served.instance)
    served = load(IDENTITY + "    def is_ready(self):\n        self.gate.wait()\n        return True\n")
    monkeypatch.setattr(readiness, "LIMIT_S", 0.01)
    gate = served.instance.state.model.gate = threading.Event()
    assert not served.backend.instance_ready(served.instance)
    assert not served.backend.instance_ready(served.instance)
    gate.set()


def test_is_ready_waits_for_the_call_in_flight(load: Load) -> None:
    source = "    def is_ready(self):\n        self.entered.release()\n        return self.gate.wait(60)\n"
    served = load(IDENTITY + source)
    model = served.instance.state.model
    model.gate, model.entered = threading.Event(), threading.Semaphore(0)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(served.backend.instance_ready, served.instance)
        assert model.entered.acquire(timeout=60)
        second = threads.submit(served.backend.instance_ready, served.instance)
        assert not wait([second], 0.1).done
        model.gate.set()
        assert first.result(60) and second.result(60)
    assert not model.entered.acquire(blocking=False)


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
    elsewhere = write(tmp_path / "elsewhere", IDENTITY) / "1" / "model.py"
    (served_from / "1").mkdir(parents=True)
    (served_from / "1" / "model.py").symlink_to(elsewhere)
    Served(PythonBackend, config(text()), served_from).close()
    for name in ("../../elsewhere/1/model.py", str(elsewhere)):
        with pytest.raises(InferError, match="escapes the directory of model 'm'"):
            Served(PythonBackend, config(text(extra=f'default_model_filename: "{name}"')), served_from)


def test_parameter_force_cpu_only(load: Load) -> None:
    extra = 'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{}" }} }}'
    load(IDENTITY, text(extra=extra.format("no")))
    with pytest.raises(InferError, match="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe"):
        load(IDENTITY, text(extra=extra.format("maybe")))


def test_reshape_is_between_client_and_model(load: Load) -> None:
    source = execute("""
seen = np.array([float(len(r.inputs()[0].shape())) for r in requests], np.float32)
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", seen[:1])]) for r in requests]
""")
    configuration = text("TYPE_FP32").replace("dims: -1", "dims: 1 reshape { }")
    assert configuration.count("reshape") == 2
    (call,) = load(source, configuration)(infer({"I": np.ones((1, 1), np.float32)}))
    assert call.arrays["O"].tolist() == [[1.0]]
