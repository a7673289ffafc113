"""What becomes of SeldonDeployments and of Seldon Core 2's Models."""

import json
from pathlib import Path

import pytest

from nereid.migrate.plan import MigratedModel, MigrationError
from nereid.migrate.seldon import models
from tests.unit.nereid.migrate.sources import FLOAT, migrated, refusal, saved_model

DEPLOYMENT = """
apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata:
  name: iris-model
  namespace: seldon
spec:
  name: iris
  protocol: v2
  predictors:
  - name: default
    replicas: 3
    graph:
      name: classifier
      implementation: SKLEARN_SERVER
      modelUri: gs://seldon-models/v1.18.0/sklearn/iris
      children: []
      parameters:
      - name: method
        type: STRING
        value: decision
    componentSpecs:
    - spec:
        containers:
        - name: classifier
          resources: {requests: {memory: 1Gi}}
"""
GRAPH = """
kind: SeldonDeployment
metadata: {name: graph}
spec:
  predictors:
  - name: main
    traffic: 90
    graph:
      name: features
      type: TRANSFORMER
      children:
      - {name: trees, implementation: XGBOOST_SERVER, modelUri: "s3://bucket/trees"}
  - name: canary
    traffic: 10
    graph: {name: trees, implementation: XGBOOST_SERVER, modelUri: "s3://bucket/new"}
"""
MODEL = """
apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata:
  name: {name}
spec:
  storageUri: "gs://seldon-models/scv2/{name}"
  requirements:
  - {requirement}
  memory: 100Ki
  replicas: 2
"""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "storage").mkdir()
    return tmp_path / "storage"


def manifest(tmp_path: Path, *texts: str) -> Path:
    file = tmp_path / "manifest.yaml"
    file.write_text("---\n".join(texts))
    return file


def put(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_deployment_becomes_the_model_that_its_clients_ask(tmp_path: Path, storage: Path) -> None:
    put(storage / "iris-model" / "model.joblib")
    text = DEPLOYMENT.replace("value: decision", "value: predict_proba")
    (model,) = migrated(models(manifest(tmp_path, text), storage))
    config = model.config
    assert (config.name, config.backend, config.parameters["ray_replicas"].string_value) == (
        "classifier", "python", "3",
    )  # fmt: skip
    assert "predict_fn" not in config.parameters, "in the v2 protocol MLServer's default is that of ours"
    assert [item.target for item in model.items] == ["1/model.py", "1/model.joblib"]
    assert not any("/api/v1.0" in note for note in model.notes)


@pytest.mark.parametrize(("method", "function"), [("predict", "predict"), ("", "predict_proba")])
def test_seldons_own_protocol_has_another_default(
    tmp_path: Path, storage: Path, method: str, function: str
) -> None:
    put(storage / "model.joblib")
    text = DEPLOYMENT.replace("protocol: v2", "protocol: seldon").replace(
        "value: decision", f"value: '{method}'"
    )
    (model,) = migrated(models(manifest(tmp_path, text), storage))
    assert model.config.parameters["predict_fn"].string_value == function
    assert any("/api/v1.0/predictions is not served" in note for note in model.notes)


def test_a_method_that_no_output_has_is_refused(tmp_path: Path, storage: Path) -> None:
    put(storage / "model.joblib")
    text = DEPLOYMENT.replace("protocol: v2", "protocol: seldon")
    assert "'decision' is not carried over" in refusal(models(manifest(tmp_path, text), storage))


def test_parts_of_a_graph_are_models_and_code_is_named(tmp_path: Path, storage: Path) -> None:
    put(storage / "trees" / "model.json")
    put(storage / "graph" / "model.bst")
    found = list(models(manifest(tmp_path, GRAPH), storage))
    assert "has to become a Python model" in refusal(found)
    trees, canary = [each for each in found if isinstance(each, MigratedModel)]
    assert (trees.config.name, canary.config.name) == ("trees", "graph-canary-trees")
    assert any("a part of a graph" in note for note in trees.notes)
    assert any("predictor 'canary' had 10 % of the requests" in note for note in canary.notes)
    assert [item.target for item in canary.items] == ["1/model.py", "1/model.bst"]


@pytest.mark.parametrize("requirement", ["sklearn", "lightgbm"])
def test_a_model_of_core_2_is_one_of_its_requirement(tmp_path: Path, storage: Path, requirement: str) -> None:
    put(storage / "iris" / {"sklearn": "model.joblib", "lightgbm": "model.txt"}[requirement])
    (model,) = migrated(
        models(manifest(tmp_path, MODEL.format(name="iris", requirement=requirement)), storage)
    )
    assert model.config.parameters["kind"].string_value == requirement
    assert model.config.parameters["ray_replicas"].string_value == "2"
    assert model.notes[-1] == "memory of its spec is not carried over"


def test_a_model_of_mlserver_has_its_settings_and_the_manifests_name(tmp_path: Path, storage: Path) -> None:
    settings = {"name": "other", "implementation": "mlserver_sklearn.SKLearnModel", "parallel_workers": 2}
    put(storage / "iris" / "model-settings.json", json.dumps(settings))
    put(storage / "iris" / "model.joblib")
    (model,) = migrated(
        models(manifest(tmp_path, MODEL.format(name="iris", requirement="mlserver")), storage)
    )
    assert (model.config.name, model.config.instance_group[0].count) == ("iris", 2)


def test_a_model_of_triton_stays_as_it_is(tmp_path: Path, storage: Path) -> None:
    put(storage / "tfsimple" / "config.pbtxt", 'name: "simple" backend: "python" max_batch_size: 8')
    put(storage / "tfsimple" / "1" / "model.py")
    text = MODEL.format(name="tfsimple", requirement="triton")
    (model,) = migrated(models(manifest(tmp_path, text), storage))
    assert (model.config.name, model.config.max_batch_size) == ("tfsimple", 8)
    assert [item.target for item in model.items] == ["1/model.py"]


def test_saved_models_and_onnx_are_found(tmp_path: Path, storage: Path) -> None:
    saved_model(storage / "tf" / "1", serving_default={"x": (FLOAT, [-1, 2])})
    put(storage / "net" / "net.onnx")
    texts = [
        MODEL.format(name=name, requirement=each) for name, each in (("tf", "tensorflow"), ("net", "onnx"))
    ]
    tensorflow, onnx = migrated(models(manifest(tmp_path, *texts), storage))
    assert (tensorflow.config.platform, onnx.config.platform) == ("tensorflow_savedmodel", "onnxruntime_onnx")


def test_triton_servers_of_core_1_have_several_models(tmp_path: Path, storage: Path) -> None:
    for name in ("a", "b"):
        put(storage / name / "1" / "model.onnx")
    put(storage / "README.md")
    text = DEPLOYMENT.replace("SKLEARN_SERVER", "TRITON_SERVER")
    assert [model.config.name for model in migrated(models(manifest(tmp_path, text), storage))] == ["a", "b"]


def test_lists_of_kubectl_are_read(tmp_path: Path) -> None:
    put(tmp_path / "iris" / "model.joblib")
    model = MODEL.format(name="iris", requirement="sklearn").replace(
        "gs://seldon-models/scv2", f"file://{tmp_path}"
    )
    text = "apiVersion: v1\nkind: List\nitems:\n- " + model.strip().replace("\n", "\n  ")
    (made,) = migrated(models(manifest(tmp_path, text), None))
    assert made.config.name == "iris"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEPLOYMENT, "copy its files, and name their directory by --storage"),
        (
            DEPLOYMENT.replace("SKLEARN_SERVER", "MLFLOW_SERVER"),
            "it is a 'MLFLOW_SERVER', which has to become",
        ),
        (
            DEPLOYMENT.replace("graph:", "other:"),
            "missing required field `graph` - at `$.spec.predictors[0]`",
        ),
        ("kind: Pipeline\nmetadata: {name: p}\n", "Pipeline: its steps are models"),
        ("kind: Experiment\nmetadata: {name: p}\n", "Experiment: split requests"),
        ("kind: Model\nmetadata: {name: m}\nspec: {}\n", "missing required field `storageUri`"),
    ],
)
def test_other_resources_are_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(models(manifest(tmp_path, text), None))


def test_a_file_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="has no SeldonDeployment and no Model"):
        list(models(manifest(tmp_path, "kind: Service"), None))
