"""What config.json and the files of weights say before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.transformers_files import check_weights

LAYERS = ("wte.weight", "h.0.mlp.weight", "h.1.mlp.weight")


def write_weights(path: Path, names: Any, size: int = 4, **changes: Any) -> None:
    """Write a file of safetensors, each tensor of two float16."""
    header = {
        name: {"dtype": "F16", "shape": [2], "data_offsets": [4 * place, 4 * place + 4], **changes}
        for place, name in enumerate(names)
    }
    content = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(size * len(header)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that passes."""
    describe(tmp_path)
    write_weights(tmp_path / "model.safetensors", [f"transformer.{name}" for name in LAYERS])
    return tmp_path


def describe(folder: Path, *architectures: str, **fields: Any) -> None:
    config = {"architectures": architectures or ["GPT2LMHeadModel"], "n_layer": 2, **fields}
    (folder / "config.json").write_text(json.dumps(config))


def shard(folder: Path, places: dict[str, str]) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def fault(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        check_weights(str(folder))
    return str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("LlamaForCausalLM", {}),
        ("Gemma3ForConditionalGeneration", {"n_layer": None, "text_config": {"num_hidden_layers": 2}}),
        ("BartForCausalLM", {"is_encoder_decoder": True}),
        ("GPT2LMHeadModel", {"n_layer": "2"}),
    ],
)
def test_models_that_generate_pass(folder: Path, architecture: str, fields: dict[str, Any]) -> None:
    describe(folder, architecture, **fields)
    check_weights(str(folder))


def test_architecture_that_is_not_told_is_left_to_the_load(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    check_weights(str(folder))


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("BertForSequenceClassification", {}),
        ("BertModel", {}),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}),
    ],
)
def test_models_that_do_not_generate_are_refused(
    folder: Path, architecture: str, fields: dict[str, Any]
) -> None:
    describe(folder, architecture, **fields)
    assert f"'{architecture}' of '{folder}/config.json' does not generate text" in fault(folder)


def test_layers_without_tensors_are_told(folder: Path) -> None:
    describe(folder, n_layer=4)
    assert "no tensors of layer 2, 3: config.json says that there are 4" in fault(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "config.json' is missing"), ("[]", "it has no JSON object"), ("{", "it has no JSON object")],
)
def test_config_that_cannot_be_read(folder: Path, content: str | None, message: str) -> None:
    (folder / "config.json").unlink() if content is None else (folder / "config.json").write_text(content)
    assert message in fault(folder)


@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_truncated_weights_are_told(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert f"'{path}' is damaged or truncated" in fault(folder)


@pytest.mark.parametrize(
    "changes", [{"data_offsets": [4, 0]}, {"shape": [3]}, {"shape": None}, {"data_offsets": "all"}]
)
def test_headers_that_contradict_themselves_are_told(folder: Path, changes: dict[str, Any]) -> None:
    write_weights(folder / "model.safetensors", LAYERS, **changes)
    assert "what it says of tensor 'wte.weight' contradicts itself" in fault(folder)


def test_missing_file_of_an_index_is_told(folder: Path) -> None:
    shard(folder, {"a": "1.safetensors", "b": "2.safetensors"})
    write_weights(folder / "1.safetensors", ["a"])
    assert "lacks 2.safetensors, which model.safetensors.index.json names" in fault(folder)


def test_missing_tensors_of_an_index_are_told(folder: Path) -> None:
    shard(folder, dict.fromkeys("abcdefg", "1.safetensors"))
    write_weights(folder / "1.safetensors", ["a"])
    assert "lack b, c, d, e, f and 1 more, which model.safetensors.index.json names" in fault(folder)


def test_other_files_than_the_usual_one_do_not_count(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"")
    check_weights(str(folder))
