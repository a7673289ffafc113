"""What becomes of Bentos."""

from pathlib import Path

import pytest

from nereid.migrate.bentoml import models
from nereid.migrate.plan import MigrationError, Refused
from tests.unit.nereid.migrate.sources import FLOAT, migrated, refusal, saved_model

BENTO = """\
service: service:svc
name: iris_classifier
version: jzfzmwrlyk2kgfxi
bentoml_version: 1.1.10
creation_time: '2023-05-11T07:25:19.412374+00:00'
labels:
  owner: bentoml-team
models:
- tag: iris_clf:h7yzo2rlyk2kgfxi
  module: bentoml.sklearn
  creation_time: '2023-05-11T07:25:16.824134+00:00'
runners:
- name: iris_clf
  runnable_type: SklearnRunnable
  embedded: false
  models:
  - iris_clf:h7yzo2rlyk2kgfxi
  resource_config:
    cpu: 2
    nvidia.com/gpu: 1
    custom: 3
- name: scale
  runnable_type: ScaleRunnable
  embedded: false
  models: []
  resource_config: null
apis:
- name: classify
  input_type: NumpyNdarray
  output_type: NumpyNdarray
docker:
  distro: debian
  env: null
"""
MODEL = """\
name: {name}
version: h7yzo2rlyk2kgfxi
module: {module}
labels: {{}}
options: {{}}
metadata: {{}}
context:
  framework_name: sklearn
  framework_versions:
    scikit-learn: 1.2.2
  bentoml_version: 1.1.10
  python_version: 3.9.12
signatures:
  {signature}:
    batchable: {batchable}
    batch_dim:
    - 0
    - 0
api_version: v1
creation_time: '2023-05-11T07:25:16.824134+00:00'
"""
VERSION = "h7yzo2rlyk2kgfxi"


def stored(
    store: Path, name: str, module: str, file: str, signature: str = "predict", batchable: bool = False
) -> Path:
    """Write a model of a store; return its directory."""
    directory = store / name / VERSION
    directory.mkdir(parents=True)
    (store / name / "latest").write_text(VERSION)
    text = MODEL.format(name=name, module=module, signature=signature, batchable=str(batchable).lower())
    (directory / "model.yaml").write_text(text)
    if file:
        (directory / file).write_bytes(b"x")
    return directory


def test_models_and_runners_of_a_bento_become_models(tmp_path: Path) -> None:
    stored(tmp_path / "models", "iris_clf", "bentoml.sklearn", "saved_model.pkl", batchable=True)
    (tmp_path / "bento.yaml").write_text(BENTO)
    model, runner = models(tmp_path, None)
    assert runner == Refused("scale", "the runner is code, which has to become a Python model (model.py)")
    assert not isinstance(model, Refused)
    config = model.config
    assert (config.name, config.backend, config.max_batch_size) == ("iris_clf", "python", 100)
    assert config.HasField("dynamic_batching")
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    assert parameters == {
        "kind": "sklearn", "file": "saved_model.pkl", "predict_fn": "predict", "ray_num_cpus": "2",
    }  # fmt: skip
    assert config.instance_group[0].kind == config.instance_group[0].KIND_GPU
    assert [item.target for item in model.items] == ["1/model.py", "1/saved_model.pkl"]
    assert any("at most 100 rows" in note for note in model.notes)
    assert any("the resource custom of its runner" in note for note in model.notes)
    assert any("APIs are code" in note for note in model.notes)


@pytest.mark.parametrize(
    "tag", ["trees:latest", "trees", f"trees:{VERSION}", '{tag: "trees:latest", alias: t}']
)
def test_a_bentofile_names_models_of_the_store(tmp_path: Path, tag: str) -> None:
    stored(tmp_path / "store", "trees", "bentoml.xgboost", "saved_model.ubj")
    (tmp_path / "bentofile.yaml").write_text(
        f'service: "service:Trees"\ninclude: ["*.py"]\nmodels:\n  - {tag}\n'
    )
    (model,) = migrated(models(tmp_path, tmp_path / "store"))
    assert (model.config.parameters["kind"].string_value, model.config.max_batch_size) == ("xgboost", 0)


def test_models_of_newer_services_are_found_once(tmp_path: Path) -> None:
    stored(tmp_path / "models", "trees", "bentoml.lightgbm", "saved_model.txt")
    tag = f"{{tag: 'trees:{VERSION}', module: '', registry: bentoml, metadata: {{}}}}"
    services = f"services:\n- name: Trees\n  service: ''\n  models: [{tag}]\n  dependencies: []\n"
    (tmp_path / "bento.yaml").write_text(f"service: service:Trees\nmodels: [{tag}]\n{services}")
    (model,) = migrated(models(tmp_path / "bento.yaml", None))
    assert model.config.name == "trees"


def test_functions_of_a_model_are_told(tmp_path: Path) -> None:
    stored(tmp_path / "models", "clf", "bentoml.sklearn", "saved_model.pkl", "predict_proba")
    (tmp_path / "bento.yaml").write_text("models: ['clf:latest']")
    (model,) = migrated(models(tmp_path, None))
    assert model.config.parameters["predict_fn"].string_value == "predict_proba"


@pytest.mark.parametrize(
    ("module", "file", "platform", "target"),
    [
        ("bentoml.onnx", "saved_model.onnx", "onnxruntime_onnx", "1/model.onnx"),
        ("bentoml.torchscript", "saved_model.pt", "pytorch_libtorch", "1/model.pt"),
        ("bentoml.tensorflow", "", "tensorflow_savedmodel", "1/model.savedmodel/saved_model.pb"),
        ("bentoml.keras", "", "tensorflow_savedmodel", "1/model.savedmodel/saved_model.pb"),
    ],
)
def test_graphs_keep_their_format(tmp_path: Path, module: str, file: str, platform: str, target: str) -> None:
    directory = stored(tmp_path / "models", "net", module, file, "__call__", batchable=True)
    if not file:
        saved_model(directory, serving_default={"x": (FLOAT, [-1, 2])})
    (tmp_path / "bento.yaml").write_text("models: ['net:latest']")
    (model,) = migrated(models(tmp_path, None))
    targets = [item.target for item in model.items]
    assert model.config.platform == platform and target in targets
    assert not any(each.endswith("savedmodel/model.yaml") for each in targets)
    assert any("adaptive batching is not carried over" in note for note in model.notes)


@pytest.mark.parametrize(
    ("models_", "text"),
    [
        ("['clf:other']", "name BentoML's store by --storage"),
        ("['none:latest']", "it is not in"),
        ("['a:b/../../..']", "is no name of a model"),
        ("['net:latest']", "it is of bentoml.pytorch, which has to become a Python model"),
        ("[{tag: 'm:1', registry: huggingface}]", "it is in the registry 'huggingface'"),
    ],
)
def test_what_cannot_be_migrated_is_refused(tmp_path: Path, models_: str, text: str) -> None:
    stored(tmp_path / "models", "net", "bentoml.pytorch", "saved_model.pt")
    stored(tmp_path / "models", "clf", "bentoml.sklearn", "saved_model.pkl")
    (tmp_path / "models" / "a").mkdir()
    (tmp_path / "bento.yaml").write_text(f"models: {models_}")
    assert text in refusal(models(tmp_path, None))


def test_a_bento_without_models_is_code(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match=r"there is no bento\.yaml"):
        list(models(tmp_path, None))
    (tmp_path / "bentofile.yaml").write_text("service: service:svc")
    with pytest.raises(MigrationError, match="names no models: build the Bento first"):
        list(models(tmp_path, None))
