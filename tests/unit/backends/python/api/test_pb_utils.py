"""pb_utils beside requests: auto-completion, helpers, the log, and the seam to other models."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from app.core.errors import InferError
from app.core.tensors import InferResponse
from backends.base import Model
from backends.python.api import pb_utils, server_api
from backends.python.api.calls import model_response
from backends.python.backend import PythonBackend
from tests.unit.backend_harness import config
from tests.unit.python_models import IDENTITY, Load, execute, failure, row, write


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
    ):
        with pytest.raises(pb_utils.TritonModelException, match="is not available in this server"):
            call()


def test_services_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered(server_api.NoServerApi):
        def exec(self, request: Any, decoupled: bool) -> Any:
            return request.target(), request.inputs()[0].name(), decoupled

    monkeypatch.setattr(server_api._Installed, "api", Offered())
    request = pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("I", np.ones(1))], [], "n", 2)
    assert request.exec(decoupled=True) == (("n", 2), "I", True)


def test_names_given_as_bytes_are_decoded() -> None:
    array = np.ones(1)
    request = pb_utils.InferenceRequest(b"r", 0, [], [b"O", "P"], b"n")
    assert request.request_id() == "r"
    assert request.target() == ("n", -1)
    assert request.requested_output_names() == {"O", "P"}
    assert pb_utils.Tensor(b"I", array).name() == "I"
    assert pb_utils.Tensor.from_dlpack(b"I", array).name() == "I"


def test_response_parameters_may_not_be_floats() -> None:
    for value in (0.5, np.float64(1)):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            pb_utils.InferenceResponse(parameters={"int": 2, "float": value})
        assert str(caught.value) == (
            f"Expect parameters values to have type bool/int/str, found type {type(value)}"
        )
    received = model_response(InferResponse(parameters={"float": 0.5}))
    assert received.parameters() == '{"float": 0.5}'


CALLING = """
def call():
    pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("I", np.ones(1))], [], "n").{how}

def call_on_a_thread():
    raised = []
    def run():
        try:
            call()
        except Exception as error:
            raised.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise raised[0]

class TritonPythonModel:
    {static}
    def {function}:
        {call}()

    def execute(self, requests):
        call()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones((1, 1), np.float32))])]
"""


def calling(function: str, how: str = "exec()", call: str = "call") -> str:
    static = "@staticmethod" if "self" not in function else ""
    return CALLING.format(function=function, how=how, call=call, static=static)


class Called(server_api.NoServerApi):
    """Answers each call with nothing, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def exec(self, request: Any, decoupled: bool) -> Any:
        self.count += 1

    async_exec = exec


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    made = Called()
    monkeypatch.setattr(server_api._Installed, "api", made)
    return made


def refusal(where: str) -> str:
    return f"BLS is only supported during the 'execute' function. Model 'n' was called in {where}."


@pytest.mark.parametrize("call", ["call", "call_on_a_thread"])
@pytest.mark.parametrize("how", ["exec()", "exec(decoupled=True)", "async_exec()"])
def test_calls_are_refused_in_initialize(how: str, call: str, load: Load, called: Called) -> None:
    with pytest.raises(InferError) as caught:
        load(calling("initialize(self, args)", how, call))
    assert refusal("'initialize'") in caught.value.message
    assert f"): {'run' if call == 'call_on_a_thread' else 'initialize'}\n" in caught.value.message
    assert called.count == 0
    load(IDENTITY)  # and nothing of it remains
    pb_utils.InferenceRequest("", 0, [], [], "n").exec()
    assert called.count == 1


def test_calls_are_refused_during_the_import(load: Load, called: Called) -> None:
    with pytest.raises(InferError) as caught:
        load(calling("initialize(self, args)") + "\ncall()\n")
    assert refusal("the import of model.py") in caught.value.message


def test_calls_are_refused_in_finalize(load: Load, called: Called, caplog: pytest.LogCaptureFixture) -> None:
    served = load(calling("finalize(self)"))
    served(row(1))[0].wait()
    assert called.count == 1
    served.backend.instance_finalize(served.instance)
    assert called.count == 1
    assert refusal("'finalize'") in caplog.text


def test_calls_are_refused_during_auto_completion(tmp_path: Path, called: Called) -> None:
    folder = write(tmp_path, calling("auto_complete_config(config)"))
    with pytest.raises(InferError) as caught:
        PythonBackend.auto_complete(Model(config('name: "m" backend: "python"'), 1, folder))
    assert refusal("'auto_complete_config'") in caught.value.message


def test_numpy_helpers() -> None:
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
        ("INFO", "a % s", Path(__file__).name),
        ("ERROR", "b", Path(__file__).name),
    ]


def completed(folder: Path, body: str, configuration: str = 'name: "m" backend: "python"') -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = IDENTITY + f"    @staticmethod\n    def auto_complete_config(c):\n{lines}\n        return c\n"
    model = Model(config(configuration), 1, write(folder, source))
    return str(text_format.MessageToString(PythonBackend.auto_complete(model), as_one_line=True))


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


TENSORS = [pb_utils.Tensor("x", np.ones(1))]
REQUEST: dict[str, Any] = {"inputs": TENSORS, "requested_output_names": ["y"], "model_name": "m"}


@pytest.mark.parametrize("name", REQUEST)
def test_what_every_request_needs(name: str) -> None:
    with pytest.raises(TypeError):
        pb_utils.InferenceRequest(**{key: value for key, value in REQUEST.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, None) for name in (*REQUEST, "request_id", "correlation_id", "model_version", "flags", "timeout")]
    + [("requested_output_names", [None])],
)
def test_arguments_of_a_request_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        pb_utils.InferenceRequest(**{**REQUEST, name: value})


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.Tensor(None, np.ones(1)),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log("text", 1),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log("text", None),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log_info(None),  # type: ignore[arg-type]
        lambda: pb_utils.Logger.log_verbose(None),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_type(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


def test_none_is_no_capsule() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="not of None"):
        pb_utils.Tensor.from_dlpack("x", None)
