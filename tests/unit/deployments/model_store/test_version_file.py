"""A version's own form: what it may change, and processors that it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.system.cpus import cpu_flags
from deployments.model_store.version_file import VERSION_FILE, read_version_file, refuse_processor


def put(directory: Path, content: Any) -> None:
    (directory / VERSION_FILE).write_text(content if isinstance(content, str) else json.dumps(content))


def test_without_a_file_there_is_no_other_form(tmp_path: Path) -> None:
    assert read_version_file(tmp_path, "onnxruntime") is None
    refuse_processor(tmp_path, "m", 1, "onnxruntime", ())


def test_the_form_replaces_backend_file_and_parameters(tmp_path: Path) -> None:
    own = {"backend": "openvino", "default_model_filename": "model.xml", "parameters": {"HINT_BF16": "YES"}}
    put(tmp_path, {"config": own, "figures": {"ratio": 1.6}})
    config = mc.ModelConfig(name="m", backend="onnxruntime", platform="onnxruntime_onnx", max_batch_size=8)
    config.parameters["intra_op_thread_count"].string_value = "2"
    config.parameters["team"].string_value = "a"
    found = read_version_file(tmp_path, "onnxruntime")
    assert found is not None
    made = found.config.of(config)
    assert (made.backend, made.platform, made.default_model_filename) == ("openvino", "", "model.xml")
    assert {name: each.string_value for name, each in made.parameters.items()} == {
        "HINT_BF16": "YES",
        "team": "a",
    }
    assert made.max_batch_size == 8 and config.backend == "onnxruntime"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"backend": "python"}, "backend: 'python' is none of"),
        ({"backend": "pytorch"}, "backend: 'pytorch' is none of"),
        ({"parameters": {"CPU_EXTENSION_PATH": "/tmp/x.so"}}, "'CPU_EXTENSION_PATH' is none of"),
        ({"default_model_filename": "../other/model.onnx"}, "is no name of a file beside it"),
        ({"default_model_filename": ".."}, "is no name of a file beside it"),
        ({"instance_group": []}, "unknown field"),
        ("{", "truncated"),
    ],
)
def test_what_goes_further_is_refused(tmp_path: Path, config: Any, why: str) -> None:
    put(tmp_path, config if isinstance(config, str) else {"config": config})
    with pytest.raises(InferError, match=why) as error:
        read_version_file(tmp_path, "onnxruntime")
    assert VERSION_FILE in error.value.message


def test_the_models_own_backend_may_stay(tmp_path: Path) -> None:
    put(tmp_path, {"config": {"backend": "pytorch"}})
    assert read_version_file(tmp_path, "pytorch") is not None


def test_a_processor_without_the_flags_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, {"cpu_flags": ["avx512_bf16", "avx2"]})
    refuse_processor(tmp_path, "m", 3, "onnxruntime", ("avx2", "avx512_bf16"))
    with pytest.raises(InferError, match=r"version 3 of model 'm' .* with avx512_bf16,"):
        refuse_processor(tmp_path, "m", 3, "onnxruntime", ("avx2",))


def test_flags_of_processors(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    )
    assert cpu_flags(tmp_path / "cpuinfo") == {"fpu", "avx2"}
    assert cpu_flags(tmp_path / "none") == frozenset()
