"""Triton's vLLM backend, unmodified, in a backend directory, with `stub_engine` in the place of vLLM.

`TRITON_VLLM_BACKEND` names a directory with the repository vllm_backend of Triton's project.
"""

import base64
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse
from backends.base import Model
from backends.python.api import server_api
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Call, Served, config, infer
from tests.waiting import block_until

SOURCE = Path(os.environ.get("TRITON_VLLM_BACKEND") or "/nowhere") / "src"
pytestmark = pytest.mark.skipif(
    not (SOURCE / "model.py").is_file(),
    reason="TRITON_VLLM_BACKEND names no directory with Triton's vLLM backend",
)
CONFIG = 'name: "m" backend: "vllm" instance_group { count: 1 kind: KIND_MODEL }'
PROMPT = "the old man"

Load = Callable[..., Served]
both = pytest.mark.parametrize("load", ["replica", "process"], indirect=True)


@pytest.fixture(scope="module")
def backend_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backend directory with Triton's files, and beside them the package `vllm`."""
    directory = tmp_path_factory.mktemp("backends")
    shutil.copytree(SOURCE, directory / "vllm")
    (directory / "vllm" / "vllm").mkdir()
    stub = Path(__file__).with_name("stub_engine.py")
    (directory / "vllm" / "vllm" / "__init__.py").write_text(stub.read_text())
    return directory


@pytest.fixture
def load(backend_directory: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Load:
    """Complete and load a model with these engine arguments, in this process or in one of its own."""

    def load_one(arguments: dict[str, Any] | None = None, text: str = "", loras: Any = None) -> Served:
        (tmp_path / "1").mkdir()
        if arguments is not None:
            (tmp_path / "1" / "model.json").write_text(json.dumps(arguments))
        if loras:
            (tmp_path / "1" / "multi_lora.json").write_text(json.dumps(loras))
        backend = find_backend(BackendPlace("vllm", backend_directory))
        model = Model(config(CONFIG + text), 1, tmp_path)
        model.common_file = BackendPlace("vllm", backend_directory).python_file
        model.interpreter = Path(sys.executable) if getattr(request, "param", "") == "process" else None
        model.config = backend.auto_complete(model)
        served = Served(backend, model, kind="MODEL")
        request.addfinalizer(served.close)
        return served

    return load_one


@pytest.fixture
def served(load: Load) -> Served:
    """A model with plain engine arguments."""
    return load(OPT)


OPT = {"model": "facebook/opt-125m", "max_model_len": 8}


def ask(served: Served, parameters: Any = None, text: str = PROMPT, **inputs: Any) -> Call:
    """Start one request; `parameters` become the input `sampling_parameters`."""
    arrays = {name: np.array([value]) for name, value in inputs.items()}
    arrays["text_input"] = np.array([text], np.object_)
    if parameters is not None:
        arrays["sampling_parameters"] = np.array([json.dumps(parameters)], np.object_)
    return served(infer(arrays))[0]


def outputs(response: InferResponse) -> dict[str, Any]:
    """The outputs of a response, lists with text instead of bytes."""
    assert response.failure is None, response.failure
    arrays = {tensor.name: tensor.array().tolist() for tensor in response.outputs}
    return {
        name: [value.decode() if isinstance(value, bytes) else value for value in values]
        if isinstance(values, list)
        else values
        for name, values in arrays.items()
    }


def text_of(call: Call) -> str:
    (response,) = call.wait()
    (text,) = outputs(response)["text_output"]
    assert isinstance(text, str)
    return text


def test_configuration_is_completed(served: Served) -> None:
    completed = served.model.config
    assert [each.name for each in completed.input] == [
        *("text_input", "image", "stream", "sampling_parameters", "exclude_input_in_output"),
        *("return_finish_reason", "return_cumulative_logprob", "return_logprobs"),
        *("return_num_input_tokens", "return_num_output_tokens", "embedding_request"),
    ]
    assert [each.optional for each in completed.input] == [False, *[True] * 10]
    assert [(each.name, list(each.dims)) for each in completed.output] == [
        *(("text_output", [-1]), ("finish_reason", [-1]), ("cumulative_logprob", [-1])),
        *(("logprobs", [-1]), ("num_input_tokens", [1]), ("num_output_tokens", [-1])),
    ]
    assert completed.max_batch_size == 0 and completed.model_transaction_policy.decoupled


def test_one_response(served: Served) -> None:
    assert text_of(ask(served, {"max_tokens": 4})) == "the old man the old man the"
    assert text_of(ask(served, {"max_tokens": "2"}, exclude_input_in_output=True)) == " the old"
    assert text_of(ask(served, {"stop": ["man"]}, exclude_input_in_output=True)) == " the old"


def test_parameters_of_the_request(served: Served) -> None:
    arrays = {"text_input": np.array([PROMPT], np.object_), "stream": np.array([False])}
    (call,) = served(infer(arrays, parameters={"max_tokens": 1, "temperature": "0"}))
    assert text_of(call) == "the old man the"


@both
def test_stream(served: Served) -> None:
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    wanted: dict[str, Any] = {f"return_{name}": True for name in names}
    call = ask(served, {"max_tokens": 2, "logprobs": 1}, stream=True, **wanted)
    first, last = map(outputs, call.wait())
    assert [response.final for response in call.responses] == [False, True]
    assert (first["text_output"], last["text_output"]) == ([" the"], [" old"])
    assert (first["finish_reason"], last["finish_reason"]) == (["None"], ["length"])
    assert (first["cumulative_logprob"], last["cumulative_logprob"]) == ([-0.5], [-1.0])
    assert json.loads(last["logprobs"][0]) == [{"1": {"logprob": -0.5, "rank": 1, "decoded_token": "old"}}]
    assert (first["num_input_tokens"], first["num_output_tokens"]) == (3, [1])


def test_requests_are_generated_together(served: Served) -> None:
    calls = [
        ask(served, {"max_tokens": 5, "n": 2}, f"a{i} b", exclude_input_in_output=True) for i in range(8)
    ]
    for i, call in enumerate(calls):
        (response,) = call.wait()
        assert outputs(response)["text_output"] == [f" a{i} b a{i} b a{i}"] * 2


@both
@pytest.mark.parametrize("stream", [True, False])
def test_cancellation(served: Served, stream: bool) -> None:
    call = ask(served, {"max_tokens": 1_000_000}, stream=stream)
    if stream:
        block_until(lambda: len(call.responses) > 2)
    call.cancelled = True
    *_, last = call.wait()
    if stream:
        assert last.failure is not None
        assert (last.failure.code, last.failure.message) == (ErrorCode.CANCELLED, "Request was cancelled")
    else:  # what there was
        assert outputs(last)["text_output"][0].startswith("the old man the")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"stream": True, "exclude_input_in_output": False},
            "Error generating stream: When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
        ({"text": ""}, "Error generating stream: The decoder prompt (length 0) is not within 1 and 8"),
        (
            {"parameters": {"top_q": 1}},
            "Error generating stream: 'NoneType' object has no attribute 'lora_name'",
        ),
        ({"parameters": {"lora_name": "doll"}}, "LoRA feature is not enabled."),
    ],
)
def test_errors(served: Served, inputs: dict[str, Any], message: str) -> None:
    assert ask(served, **inputs).error == message
    assert text_of(ask(served, {"max_tokens": 1})) == "the old man the"


def test_loras(load: Load) -> None:
    served = load({**OPT, "enable_lora": "true"}, loras={"doll": "/loras/doll", "sheep": "/loras/sheep"})
    assert text_of(ask(served, {"max_tokens": 1, "lora_name": "sheep"})) == "the old man the@/loras/sheep"
    assert ask(served, {"lora_name": "bavaria"}).error == (
        "LoRA bavaria is not supported, we currently support ['doll', 'sheep']"
    )


def test_image(served: Served) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "PNG")
    call = ask(served, {"max_tokens": 4}, image=base64.b64encode(picture.getvalue()))
    assert text_of(call) == "the old man the old man <image 0>"


def test_embedding(served: Served) -> None:
    request = {"input": PROMPT, "pooling_params": {"dimensions": [2]}}
    call = ask(served, embedding_request=json.dumps(request).encode(), return_num_input_tokens=True)
    (response,) = call.wait()
    assert outputs(response) == {"text_output": ["[3.0, 3.0]"], "num_input_tokens": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "'model.json' containing vllm engine args must be provided in '"),
        ({"model": "missing"}, "OSError: missing is not a local folder"),
        ({"model": "m", "top": 1}, "AsyncEngineArgs.__init__() got an unexpected keyword argument 'top'"),
        ({"model": "m", "enable_lora": True}, "Triton backend cannot find "),
    ],
)
def test_model_that_cannot_be_loaded(load: Load, arguments: Any, message: str) -> None:
    with pytest.raises(InferError) as caught:
        load(arguments)
    assert message in caught.value.message


class Repository(server_api.NoServerApi):
    """Notes what a model wants to have unloaded."""

    def __init__(self) -> None:
        self.unloaded: list[str] = []

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self.unloaded.append(name)


@both
def test_unhealthy_engine_unloads_its_model(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository()
    monkeypatch.setattr(server_api._Installed, "api", repository)
    served = load(OPT, 'parameters { key: "ENABLE_VLLM_HEALTH_CHECK" value { string_value: "true" } }')
    assert text_of(ask(served, {"max_tokens": 1})) == "the old man the"
    ask(served, {"max_tokens": 1}, "break").wait()
    call = ask(served)
    assert call.error == "Model is unavailable due to unhealthy vLLM engine"
    assert call.responses[0].failure is not None
    assert call.responses[0].failure.code is ErrorCode.UNAVAILABLE
    block_until(lambda: repository.unloaded == ["m"])


@both
def test_metrics(load: Load) -> None:
    served = load(OPT, 'parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }')
    ask(served, {"max_tokens": 4}).wait()

    def values() -> dict[str, Any]:
        return {name: metrics[0] for name, _, _, metrics in served.backend.metrics() if "vllm:" in name}

    block_until(lambda: values()["vllm:request_params_n"][4][0] == 1)
    labels, prompt, *_ = values()["vllm:prompt_tokens_total"]
    assert (labels, prompt) == ({"model": "m", "version": "1"}, 3)
    assert values()["vllm:generation_tokens_total"][1] == 4
    assert values()["vllm:request_prompt_tokens"][3:] == [[1, 2, 5], [0, 0, 1, 0]]


@both
def test_unload_waits_for_requests_and_ends_the_engine(
    load: Load, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    served = load(OPT)
    call = ask(served, {"max_tokens": 20}, exclude_input_in_output=True)
    served.backend.instance_finalize(served.instance)
    assert text_of(call).count(" ") == 20
    assert "engine shut down" in capfd.readouterr().out + caplog.text
    assert "[vllm] Shutdown complete" in caplog.text
