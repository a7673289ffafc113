"""What becomes of models of MLServer, and of those of KServe in the same formats."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nereid.migrate import kserve
from nereid.migrate.mlserver import models
from tests.unit.nereid.migrate.sources import FLOAT, migrated, refusal, saved_model

SETTINGS: dict[str, Any] = {
    "name": "iris",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.joblib", "version": "v2.1", "environment_tarball": "env.tar.gz"},
    "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 4]}],
    "outputs": [{"name": "predict", "datatype": "INT64", "shape": [-1, 1]}],
}


def source(directory: Path, file: str = "model.joblib", **settings: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / file).write_bytes(b"\x80\x04not unpickled")
    (directory / "model-settings.json").write_text(json.dumps({**SETTINGS, **settings}))
    return directory


def test_settings_become_a_configuration(tmp_path: Path) -> None:
    source(tmp_path / "iris", max_batch_size=16, max_batch_time=0.5, parallel_workers=2)
    (model,) = migrated(models(tmp_path))
    config = model.config
    assert (config.name, config.max_batch_size, config.instance_group[0].count) == ("iris", 16, 2)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500_000
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [
        ("x", [4]),
        ("predict", [1]),
    ]
    assert [item.target for item in model.items] == ["2/model.py", "2/model.joblib"]
    assert any("EXECUTION_ENV_PATH" in note for note in model.notes)


def test_without_batching_requests_have_any_number_of_rows(tmp_path: Path) -> None:
    (model,) = migrated(models(source(tmp_path / "m")))
    assert (model.config.max_batch_size, list(model.config.input[0].dims)) == (0, [-1, 4])


def test_what_is_not_declared_is_left_to_the_load(tmp_path: Path) -> None:
    extra = {"extra": {"predict_fn": "predict_proba"}}
    (model,) = migrated(models(source(tmp_path / "m", inputs=[], outputs=[], parameters=extra)))
    assert not model.config.input and not model.config.output
    assert model.config.parameters["predict_fn"].string_value == "predict_proba"
    assert any("completes 'predict' of FP32" in note for note in model.notes)


def test_outputs_that_its_runtime_does_not_have_are_left_out(tmp_path: Path) -> None:
    outputs = [{"name": name, "datatype": "FP64", "shape": [-1, 1]} for name in ("y", "predict_proba")]
    (model,) = migrated(models(source(tmp_path / "m", outputs=outputs)))
    assert [tensor.name for tensor in model.config.output] == ["predict_proba"]
    assert "the output 'y' is not carried over: MLServer's sklearn answers with 'predict'" in model.notes


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"implementation": "models.Mine"}, "has to become a Python model"),
        ({"parameters": {"uri": "absent"}}, "there is no model in"),
        ({"inputs": [{"name": "x"}]}, "missing required field `datatype`"),
    ],
)
def test_what_cannot_be_migrated_is_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    assert re.search(text, refusal(models(source(tmp_path / "m", **settings))))


SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  predictor:
    minReplicas: 2
    model: {{modelFormat: {{name: {kind}}}, storageUri: {uri}}}
"""


def services(tmp_path: Path, kind: str, uri: str, name: str = "service") -> Path:
    file = tmp_path / "Expected `str`, got `array`"
    file.write_text(SERVICE.format(kind=kind, uri=uri, name=name))
    return file


def test_inference_services_become_models(tmp_path: Path) -> None:
    saved_model(tmp_path / "tf" / "1", serving_default={"x": (FLOAT, [-1, 2])})
    (model,) = migrated(kserve.models(services(tmp_path, "tensorflow", f"file://{tmp_path}/tf"), None))
    assert (model.config.name, model.config.platform) == ("service", "tensorflow_savedmodel")
    assert model.notes == ("minReplicas of the predictor is not carried over",)
    (tmp_path / "storage" / "service").mkdir(parents=True)
    (tmp_path / "storage" / "service" / "m.onnx").write_bytes(b"x")
    (model,) = migrated(kserve.models(services(tmp_path, "onnx", "s3://bucket/m"), tmp_path / "storage"))
    assert [item.target for item in model.items] == ["1/model.onnx"]
    (tmp_path / "storage" / "service" / "model.joblib").write_bytes(b"x")
    (model,) = migrated(kserve.models(services(tmp_path, "sklearn", "s3://bucket/m"), tmp_path / "storage"))
    assert model.config.parameters["kind"].string_value == "sklearn"


@pytest.mark.parametrize(
    ("kind", "uri", "text"),
    [
        ("tensorflow", "s3://bucket/m", "name their directory by --storage"),
        ("tensorflow", "file://nowhere", "there is no .*/nowhere"),
        ("tensorflow", "file:///tmp", "leads out of .*: name the directory of its files by --storage"),
        ("paddle", "file:///tmp", "expected a model of sklearn"),
        ("triton", "file://.", "serve .* as it is"),
        ("!!python/object/apply:os.system [id]", "x", "Expected `str`, got `array`"),
    ],
)
def test_other_services_are_refused(tmp_path: Path, kind: str, uri: str, text: str) -> None:
    assert re.search(text, refusal(kserve.models(services(tmp_path, kind, uri), None)))
