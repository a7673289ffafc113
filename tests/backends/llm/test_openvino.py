"""What models of OpenVINO alone have: files, and what they refuse. All else is tested of both engines."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InferError
from backends.base import Model
from tests.backends.llm.serving import Load, ask, text_of
from tests.backends.packaged import serve_model
from tests.unit.backend_harness import config


def with_adapter(folder: Path) -> None:
    (folder / "1" / "multi_lora.json").write_text('{"red": "red"}')
    (folder / "1" / "red").mkdir()
    (folder / "1" / "red" / "adapter_model.safetensors").touch()


def without_weights(folder: Path) -> None:
    (folder / "1" / "weights" / "openvino_model.bin").unlink()


def of_another_shape(folder: Path) -> None:
    """Have fewer weights than the network wants."""
    path = folder / "1" / "weights" / "openvino_model.bin"
    path.write_bytes(path.read_bytes()[:1000])


def without_attention(folder: Path) -> None:
    path = folder / "1" / "weights" / "openvino_model.xml"
    path.write_text(path.read_text().replace("ScaledDotProductAttention", "Nothing"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_adapter, "engine openvino has no adapters: remove multi_lora.json"),
        (without_weights, "engine openvino serves what 'optimum-cli export openvino' writes"),
        (of_another_shape, "engine openvino cannot serve '"),
        (without_attention, "engine openvino cannot serve '"),
    ],
)
def test_model_that_is_refused(
    repository: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "small"
    shutil.copytree(repository / "small", folder)
    (folder / "1" / "model.json").write_text(json.dumps({"model": "weights", "engine": "openvino"}))
    change(folder)
    loaded: list[Callable[[], None]] = []
    model = Model(config('name: "small" backend: "llm"'), 1, folder)
    with pytest.raises(InferError) as caught:
        serve_model("llm", model, loaded.append, completed=True)
    for close in reversed(loaded):
        close()
    assert message in caught.value.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_that_the_processor_has_not_are_refused(
    load: Load, expected: dict[str, str], dtype: str
) -> None:
    arguments: dict[str, Any] = {"model": "weights", "engine": "openvino", "dtype": dtype}
    try:
        served = load("small", arguments)
    except InferError as error:
        assert f"dtype {dtype} is not of this processor: OpenVINO would compute in " in error.message
    else:
        text = text_of(ask(served, "The old", {"max_tokens": 9}, exclude_input_in_output=True))
        assert len(text.encode()) == 9 and expected["The old"].startswith(text)
