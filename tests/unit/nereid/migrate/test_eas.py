"""What becomes of services of Alibaba PAI-EAS."""

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.migrate.eas import models
from nereid.migrate.plan import MigrationError
from tests.unit.nereid.migrate.sources import FLOAT, migrated, refusal, saved_model

TENSORFLOW: dict[str, Any] = {
    "name": "tf_serving_test",
    "model_path": "http://examplebucket.oss-cn-shanghai.aliyuncs.com/models/model.tar.gz",
    "processor": "tensorflow_gpu_1.15",
    "warm_up_data_path": "oss://path/to/warm_up_test.bin",
    "metadata": {
        "instance": 2,
        "cpu": 4,
        "gpu": 1,
        "memory": 4000,
        "resource": "eas-r-x",
        "rpc.keepalive": 5000,
    },
}
PYTORCH: dict[str, Any] = {
    "name": "pytorch_resnet_example",
    "model_path": "http://examplebucket.oss-cn-shanghai.aliyuncs.com/models/resnet18.pt",
    "processor": "pytorch_cpu_1.10",
    "metadata": {"cpu": 1, "instance": 1, "memory": 1000},
}
TRITON: dict[str, Any] = {
    "name": "triton_example",
    "processor": "triton",
    "processor_params": [
        "--model-repository=oss://triton-model-repo/models", "--allow-grpc=true", "--allow-http=true",
    ],
    "metadata": {"instance": 1, "cpu": 4, "gpu": 1, "memory": 10000, "resource": "r", "rpc.keepalive": 3000},
}  # fmt: skip


def service(tmp_path: Path, document: Any) -> Path:
    file = tmp_path / "service.json"
    file.write_text(json.dumps(document))
    return file


def test_a_saved_model_keeps_instances_and_what_they_had(tmp_path: Path) -> None:
    saved_model(tmp_path / "unpacked" / "export", serving_default={"x": (FLOAT, [-1, 2])})
    (model,) = migrated(models(service(tmp_path, TENSORFLOW), tmp_path / "unpacked"))
    config = model.config
    assert (config.name, config.platform, config.max_batch_size) == (
        "tf_serving_test",
        "tensorflow_savedmodel",
        0,
    )
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "ray_replicas": "2",
        "ray_num_cpus": "4",
        "ray_memory_bytes": str(4000 << 20),
    }
    assert config.instance_group[0].kind == config.instance_group[0].KIND_GPU
    assert "1/model.savedmodel/saved_model.pb" in [item.target for item in model.items]
    assert model.notes[-4:] == (
        "warm_up_data_path is not carried over",
        "metadata.resource is not carried over",
        "metadata.rpc.keepalive is not carried over",
        "behind a gateway that leaves the path as it is, start with "
        "--http-path-prefix=/api/predict/tf_serving_test",
    )


@pytest.mark.parametrize(
    "rpc",
    [
        {"rpc.batching": True, "rpc.max_batch_size": 32, "rpc.max_batch_timeout": 20},
        {"rpc": {"batching": True, "max_batch_size": 32, "max_batch_timeout": 20}},
    ],
)
def test_batches_become_dynamic_batching(tmp_path: Path, rpc: dict[str, Any]) -> None:
    saved_model(tmp_path / "tf_serving_test" / "3", serving_default={"x": (FLOAT, [-1, 2])})
    (model,) = migrated(models(service(tmp_path, {**TENSORFLOW, "metadata": rpc}), tmp_path))
    assert model.config.max_batch_size == 32
    assert model.config.dynamic_batching.max_queue_delay_microseconds == 20_000
    assert list(model.config.input[0].dims) == [2]


def test_torchscript_is_served_by_libtorch(tmp_path: Path) -> None:
    (tmp_path / "resnet18.pt").write_bytes(b"PK")
    (model,) = migrated(models(service(tmp_path, PYTORCH), tmp_path / "resnet18.pt"))
    assert model.config.platform == "pytorch_libtorch"
    assert [item.target for item in model.items] == ["1/model.pt"]
    assert any("declare its inputs and outputs" in note for note in model.notes)


def test_a_triton_service_is_its_repository(tmp_path: Path) -> None:
    for name in ("inception_graphdef", "simple"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.graphdef").write_bytes(b"x")
        (tmp_path / "models" / name / "config.pbtxt").write_text('platform: "tensorflow_graphdef"')
    found = migrated(models(service(tmp_path, TRITON), tmp_path / "models"))
    assert [model.config.name for model in found] == ["inception_graphdef", "simple"]
    assert "start the server with --allow-grpc=true --allow-http=true" in found[0].notes
    assert any("instance 1, cpu 4, gpu 1, memory 10000 (MB)" in note for note in found[0].notes)


def test_services_of_a_directory_are_read_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"PK")
    path = f"file://{tmp_path}/m.pt"
    for name in ("a", "b"):
        service(tmp_path, {**PYTORCH, "name": name, "model_path": path}).rename(tmp_path / f"{name}.json")
    (tmp_path / "c.json").write_text('{"name": "c", // comment\n}')
    found = list(models(tmp_path, None))
    assert "c.json is no JSON" in refusal(found) and len(found) == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"processor": "pmml"}, "it runs the processor 'pmml', which has to become a Python model"),
        ({"processor": None, "containers": [{"image": "x"}]}, "it runs an image or a processor of its own"),
        ({"model_path": "oss://bucket/m"}, "it is at 'oss://bucket/m': copy its files"),
        ({"model_path": "file://{root}/m.tar.gz"}, "is an archive: unpack it"),
        (
            {"model_path": "file://{root}", "model_entry": "../../etc/passwd"},
            "'../../etc/passwd' leads out of",
        ),
        ({"model_path": "file://{root}"}, "expected one .pt in"),
        ({"metadata": {"instance": -1}}, "Expected `int` >= 0 - at `$.metadata.instance`"),
        ({"metadata": {"rpc.max_batch_size": "x"}}, "metadata.rpc: Expected `int`"),
        ({"processor_params": "x"}, "Expected `array | null`, got `str`"),
        (
            {"processor": "triton", "processor_params": ["--model-repository=a", "--model-repository=b"]},
            "several",
        ),
        ({"processor": "triton", "model_path": "file://{root}/empty"}, "has no model of Triton"),
    ],
)
def test_what_cannot_be_migrated_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.tar.gz").write_bytes(b"x")
    changed = {
        key: value.format(root=tmp_path) if isinstance(value, str) else value for key, value in change.items()
    }
    assert text in refusal(models(service(tmp_path, {**PYTORCH, **changed}), None))


def test_a_directory_without_services_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match=r"there is no \.json in"):
        list(models(tmp_path, None))
