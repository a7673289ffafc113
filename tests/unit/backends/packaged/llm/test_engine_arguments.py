"""Engine arguments of a model, and where its weights may be."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.packaged.llm.engine_arguments import EngineArguments, model_folder, read_arguments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A version's directory with weights."""
    folder = tmp_path / "m" / "1" / "weights"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "elsewhere.safetensors").write_bytes(b"")
    return folder.parent


def read(directory: Path, arguments: Any) -> EngineArguments:
    (directory / "model.json").write_text(json.dumps(arguments))
    return read_arguments(str(directory))


def test_defaults(directory: Path) -> None:
    assert read(directory, {"model": "weights"}) == EngineArguments(
        "weights", "transformers", "auto", None, 16, 2048, 256, 512 << 20
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modle": "weights"}, "unknown engine argument 'modle' in"),
        ({"quantization": "awq"}, "quantization must be int8, got 'awq'"),
        (
            {"quantization": "int8", "dtype": "float32"},
            "quantization int8 computes in bfloat16, dtype is 'float32'",
        ),
        ({"engine": "genai"}, "engine must be one of transformers, openvino, got 'genai'"),
        ({"engine": "openvino", "quantization": "int8"}, "quantization is of engine transformers"),
        ({"dtype": "int4"}, "dtype must be one of auto, float32, float16, bfloat16, got 'int4'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a positive integer, got 0"),
        ({"max_model_len": True}, "max_model_len must be a positive integer, got True"),
        ({"prefix_cache_bytes": -1}, "prefix_cache_bytes must be 0 or a positive integer, got -1"),
        ({"model": 3}, "model must be a text, got 3"),
        (["weights"], "must be a JSON object"),
    ],
)
def test_arguments_that_are_refused(directory: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(directory, arguments)


def test_file_of_arguments_is_necessary(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"'model.json' containing engine args must be provided in '.*/m/1'"):
        read_arguments(str(directory))


def test_folder_of_weights(directory: Path) -> None:
    assert model_folder(str(directory), "weights") == str(directory / "weights")
    with pytest.raises(ValueError, match=r"model 'nobody/gpt' is no folder in .*'hf download nobody/gpt "):
        model_folder(str(directory), "nobody/gpt")
    with pytest.raises(ValueError, match=r"no \*.safetensors in"):
        model_folder(str(directory), ".")


def test_folder_of_openvino_has_its_own_files(directory: Path) -> None:
    folder = directory / "weights"
    (folder / "openvino_model.xml").write_text("<net/>")
    with pytest.raises(ValueError, match=r"no '.*openvino_model.bin', or it is empty: .*optimum-cli export"):
        model_folder(str(directory), "weights", "openvino")
    (folder / "openvino_model.bin").write_bytes(b"1")
    assert model_folder(str(directory), "weights", "openvino") == str(folder)
    (folder / "openvino_model.xml").write_text("<!DOCTYPE net><net/>")
    with pytest.raises(ValueError, match="has a document type declaration"):
        model_folder(str(directory), "weights", "openvino")


def test_names_that_lead_out_of_the_model_are_refused(directory: Path) -> None:
    for name in ("..", "../..", str(directory.parents[1])):
        with pytest.raises(ValueError, match=r"leads out of|no \*.safetensors"):
            model_folder(str(directory), name)


def test_weights_may_be_links_into_the_hubs_cache(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (directory / "weights").rename(tmp_path / "snapshot")
    (directory / "weights").symlink_to(tmp_path / "snapshot")
    (directory / "weights" / "more.safetensors").symlink_to(tmp_path / "blobs" / "5f")
    assert model_folder(str(directory), "weights") == str(directory / "weights")
